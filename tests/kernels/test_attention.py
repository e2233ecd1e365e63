"""int8 paged attention equals its numpy reference bit for bit, on all instruction sets, however it is cut."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.kernels import PAGE_TOKENS, SPLIT_TOKENS, attention, rows
from duologue.kernels.reference import attention as reference
from tests.kernels.isas import ISAS

BLOCK_OFFSET = 128
STALE = 0xFF
"""Fills pages before they are written: as fp32 it reads as NaN."""


@dataclass(frozen=True)
class Shape:
    """One KV head of a sequence: the last `tokens` of `context` positions attend with `group` heads each."""

    head_dim: int
    group: int
    context: int
    tokens: int
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False

    @property
    def first_position(self) -> int:
        return self.context - self.tokens

    @property
    def page_count(self) -> int:
        return -(-self.context // PAGE_TOKENS)


@dataclass(frozen=True)
class Inputs:
    shape: Shape
    q: np.ndarray  # [rows, D] int8
    q_scale: np.ndarray  # [rows]
    keys: np.ndarray  # [context, D]
    values: np.ndarray  # [context, D]
    pages: np.ndarray  # [page_count], not in order

    def pool(self, isa: str = "", *, fill: int = STALE) -> np.ndarray:
        block = attention.kv_block_bytes(self.shape.head_dim)
        pool = np.full((self.shape.page_count + 2, BLOCK_OFFSET + -(-block // 64) * 64), fill, dtype=np.uint8)
        attention.store_kv(pool, self.pages, BLOCK_OFFSET, 0, self.keys, self.values, isa=isa)
        return pool

    def attend(self, pool: np.ndarray, isa: str = "", *, row_block: int | None = None) -> np.ndarray:
        shape = self.shape
        return attention.attend(
            pool, self.pages, [BLOCK_OFFSET], self.q[None], self.q_scale[None], group=shape.group,
            first_position=shape.first_position, window=shape.window, softcap=shape.softcap,
            sinks=None if self.sinks is None else self.sinks[None], row_block=row_block, isa=isa,
        )[0]  # fmt: skip

    @property
    def sinks(self) -> np.ndarray | None:
        """[group], some above every score and some below."""
        return np.linspace(-3, 6, self.shape.group, dtype=np.float32) if self.shape.sinks else None

    def expected(self) -> np.ndarray:
        shape = self.shape
        return reference.attend(
            self.q, self.q_scale, self.keys, self.values, group=shape.group,
            first_position=shape.first_position, window=shape.window, softcap=shape.softcap, sinks=self.sinks,
        )  # fmt: skip


def make_inputs(shape: Shape, *, seed: int = 0, sharpness: float = 1.0) -> Inputs:
    rng = np.random.default_rng([seed, shape.head_dim, shape.context])
    keys, values = rng.standard_normal((2, shape.context, shape.head_dim)).astype(np.float32)
    # Scales that differ by token, so that a scale read from another slot shows.
    keys *= rng.uniform(0.25, 2.0, (shape.context, 1)).astype(np.float32)
    values *= rng.uniform(0.25, 2.0, (shape.context, 1)).astype(np.float32)
    q = rng.standard_normal((shape.tokens * shape.group, shape.head_dim)).astype(np.float32)
    codes, scale = rows.quantize_rows(q * np.float32(sharpness * shape.head_dim**-0.5))
    pages = rng.permutation(shape.page_count + 2)[: shape.page_count].astype(np.int32)
    return Inputs(shape, codes, scale, keys, values, pages)


CONTEXTS = [1, 15, 63, 64, 65, 511, 512, 513, 1500]
DECODES = [
    Shape(dim, group, context, 1)
    for context in CONTEXTS
    for dim, group in [(64, 3), (64, 1), (128, 4), (48, 9)]
]
PREFILLS = [
    Shape(64, 3, 200, 200),
    Shape(64, 3, 600, 100),
    Shape(64, 1, 130, 130),
    Shape(16, 5, 70, 70),
    Shape(96, 8, 80, 80),
    Shape(128, 4, 530, 40),
    Shape(256, 1, 70, 70),
]
WINDOWS = [
    Shape(64, 3, 200, 200, window=1),
    Shape(64, 3, 200, 200, window=50),
    Shape(64, 3, 200, 200, window=64),
    Shape(64, 2, 300, 300, window=100),
    Shape(64, 3, 200, 200, window=200),
    Shape(64, 3, 700, 250, window=100),
    Shape(64, 3, 1500, 2, window=1024),
]


CAPS_AND_SINKS = [
    Shape(64, 3, 200, 200, softcap=1.5),
    Shape(32, 2, 600, 3, window=100, softcap=50.0),
    Shape(64, 4, 700, 90, sinks=True),
    Shape(16, 5, 1100, 1, window=40, sinks=True),
    Shape(64, 2, 70, 70, window=20, softcap=2.0, sinks=True),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", DECODES + PREFILLS + WINDOWS + CAPS_AND_SINKS, ids=str)
def test_attend_equals_reference(shape: Shape, isa: str) -> None:
    inputs = make_inputs(shape)
    np.testing.assert_array_equal(inputs.attend(inputs.pool(isa), isa), inputs.expected())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sharpness", [0.0, 1e-3, 30.0, 1e4])
def test_attend_equals_reference_on_flat_and_sharp_scores(sharpness: float, isa: str) -> None:
    inputs = make_inputs(Shape(64, 3, 700, 3), sharpness=sharpness)
    np.testing.assert_array_equal(inputs.attend(inputs.pool(isa), isa), inputs.expected())


@pytest.mark.parametrize("isa", ISAS)
def test_values_of_zero_give_zero(isa: str) -> None:
    inputs = make_inputs(Shape(64, 3, 300, 20))
    inputs = dataclasses.replace(inputs, values=np.zeros_like(inputs.values))
    assert not inputs.attend(inputs.pool(isa), isa).any()


@pytest.mark.parametrize("isa", ISAS)
@given(
    head_dim=st.sampled_from([16, 32, 64, 80, 128]),
    group=st.integers(1, 9),
    first_position=st.integers(0, 1100),
    tokens=st.integers(1, 80),
    window=st.one_of(st.just(0), st.integers(1, 700)),
    row_tokens=st.integers(1, 80),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=30)
def test_cut_into_calls_never_shows(
    isa: str,
    head_dim: int,
    group: int,
    first_position: int,
    tokens: int,
    window: int,
    row_tokens: int,
    seed: int,
) -> None:
    shape = Shape(head_dim, group, first_position + tokens, tokens, window)
    inputs = make_inputs(shape, seed=seed)
    pool = inputs.pool()
    whole = inputs.attend(pool, ISAS[0], row_block=tokens * group)
    np.testing.assert_array_equal(inputs.attend(pool, isa, row_block=row_tokens * group), whole)
    np.testing.assert_array_equal(inputs.attend(pool, isa, row_block=group), whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "shape", [Shape(64, 3, 100, 100), Shape(64, 3, 700, 5, window=130), Shape(64, 4, 513, 1)], ids=str
)
def test_stale_bytes_never_show(shape: Shape, isa: str) -> None:
    inputs = make_inputs(shape)
    np.testing.assert_array_equal(
        inputs.attend(inputs.pool(fill=STALE), isa), inputs.attend(inputs.pool(fill=0), isa)
    )
    assert np.isnan(np.full(4, STALE, dtype=np.uint8).view(np.float32)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("position", [69, 70, 130, 199, 200, 255])
def test_exactly_the_seen_keys_matter(position: int, isa: str) -> None:
    # The query at 199 with a window of 130 sees 70 .. 199.
    inputs = make_inputs(Shape(64, 3, 200, 1, window=130))
    pool = inputs.pool()
    before = inputs.attend(pool, isa)
    page, slot = divmod(position, PAGE_TOKENS)
    block = pool[inputs.pages[page], BLOCK_OFFSET:]
    key_byte = slot // 16 * 64 * 16 + slot % 16 * 4
    value_byte = PAGE_TOKENS * 64 + slot // 4 * 64 * 4 + slot % 4
    for index in (key_byte, value_byte):
        block[index] ^= 0x40
        assert np.array_equal(inputs.attend(pool, isa), before) == (not 70 <= position <= 199), index
        block[index] ^= 0x40


def _p_rounding_bound(scores: np.ndarray, v_codes: np.ndarray, v_scale: np.ndarray) -> np.ndarray:
    """Most that rounding weights changes a row [D]: half a code of each scale group's largest weight."""
    p = np.exp(scores - scores.max())
    bound = np.zeros(v_codes.shape[1])
    for begin in range(0, len(p), attention.P_SCALE_TOKENS):
        part = slice(begin, begin + attention.P_SCALE_TOKENS)
        half_code = 0.5 * (p[part] * v_scale[part]).max() / 127
        bound += half_code * np.abs(v_codes[part].astype(np.float64)).sum(axis=0)
    return bound / p.sum()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("context", [1, 64, 700, 1500])
def test_error_is_what_rounding_explains(context: int, isa: str) -> None:
    # Float attention over the dequantised Q, K and V: what remains is P's rounding and fp32 noise.
    inputs = make_inputs(Shape(64, 3, context, 1))
    k_codes, k_scale = rows.quantize_rows(inputs.keys)
    v_codes, v_scale = rows.quantize_rows(inputs.values)
    q = inputs.q * inputs.q_scale[:, None]
    keys, values = k_codes * k_scale[:, None], v_codes * v_scale[:, None]
    exact = reference.attend_float(q, keys, values, group=3, first_position=context - 1)
    # Scores are rounded three times, 2^x is off by at most 2e-7, sums and rescaling by one rounding per step.
    score_error = 3 * 2.0**-24 * np.abs(q @ keys.T).max()
    noise = (2e-7 + score_error + (context / 16 + 30) * 2.0**-24) * 2 * np.abs(values).max()
    for row, result in enumerate(inputs.attend(inputs.pool(isa), isa)):
        bound = _p_rounding_bound(q[row].astype(np.float64) @ keys.T, v_codes, v_scale)
        assert (np.abs(result - exact[row]) <= bound + noise).all()
        assert bound.max() < 0.1 * np.abs(values).max(), "the tolerance is too loose to mean anything"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", [16, 48, 64, 128, 256])
def test_store_kv_equals_reference(head_dim: int, isa: str) -> None:
    inputs = make_inputs(Shape(head_dim, 1, 150, 1))
    pool = inputs.pool(isa)
    expected = np.full_like(pool, STALE)
    reference.store_kv(expected, inputs.pages, BLOCK_OFFSET, 0, inputs.keys, inputs.values)
    np.testing.assert_array_equal(pool, expected)


def test_store_kv_token_by_token_equals_all_at_once() -> None:
    inputs = make_inputs(Shape(64, 1, 130, 1))
    once = inputs.pool()
    single = np.full_like(once, STALE)
    for t in reversed(range(130)):
        attention.store_kv(
            single, inputs.pages, BLOCK_OFFSET, t, inputs.keys[t : t + 1], inputs.values[t : t + 1]
        )
    np.testing.assert_array_equal(single, once)


def test_several_heads_read_their_own_blocks() -> None:
    heads = [make_inputs(Shape(64, 3, 200, 70), seed=seed) for seed in range(3)]
    block = attention.kv_block_bytes(64)
    pool = np.full((6, 3 * block), STALE, dtype=np.uint8)
    for head, inputs in enumerate(heads):
        attention.store_kv(pool, heads[0].pages, head * block, 0, inputs.keys, inputs.values)
    q, q_scale = np.stack([h.q for h in heads]), np.stack([h.q_scale for h in heads])
    out = attention.attend(
        pool, heads[0].pages, np.arange(3) * block, q, q_scale, group=3, first_position=130
    )
    for head, inputs in enumerate(heads):
        np.testing.assert_array_equal(out[head], inputs.attend(inputs.pool()))


def test_splits_and_pages_are_what_the_layout_promises() -> None:
    assert SPLIT_TOKENS % PAGE_TOKENS == 0
    assert PAGE_TOKENS % attention.P_SCALE_TOKENS == 0
    # SmolLM2: 136 bytes for a token and KV head.
    assert attention.kv_block_bytes(64) == PAGE_TOKENS * (64 + 64 + 4 + 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((1, 6, 40), dtype=np.int8)}, "head_dim must be a multiple of 16"),
        ({"q": np.zeros((3, 64), dtype=np.int8)}, "q must have 3 dimensions"),
        ({"pages": [0, 99]}, "page id lies outside the pool"),
        ({"pages": [0]}, "pages must cover every position"),
        ({"block_offsets": [32]}, "multiples of 64"),
        ({"block_offsets": [64 * 1000]}, "does not fit in a page"),
        ({"q_scale": np.ones((1, 4), dtype=np.float32)}, "q_scale"),
        ({"row_block": 4}, "row_block must be a multiple of group"),
        ({"window": -1}, "window"),
    ],
)
def test_bad_arguments_are_refused_by_name(change: dict[str, object], message: str) -> None:
    pool = make_inputs(Shape(64, 3, 100, 1)).pool()
    arguments: dict[str, object] = {
        "pages": [0, 1],
        "block_offsets": [BLOCK_OFFSET],
        "q": np.zeros((1, 6, 64), dtype=np.int8),
        "q_scale": np.ones((1, 6), dtype=np.float32),
        "group": 3,
        "first_position": 98,
    }
    with pytest.raises(ValueError, match=message):
        attention.attend(pool, **{**arguments, **change})  # type: ignore[arg-type]


def test_values_that_are_not_finite_are_refused_by_name() -> None:
    inputs = make_inputs(Shape(64, 1, 10, 1))
    inputs.values[3, 5] = np.nan
    with pytest.raises(ValueError, match="values holds a NaN"):
        inputs.pool()
