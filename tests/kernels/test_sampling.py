"""Sampling: equal to the reference on every instruction set, and distributed as its parameters say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.kernels import _native, sampling
from duologue.kernels.reference import sampling as reference
from tests.kernels.isas import ISAS

Floats = npt.NDArray[np.float32]
SEEDS = (0, 1, 42, 2**32, 2**63, 2**64 - 1)


def logits_of(vocab: int, seed: int, kind: str) -> Floats:
    """Rows with the accidents that real ones have: ties, masked tokens, one token far above the others."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, vocab).astype(np.float32)
    if kind == "ties":
        logits = np.rint(logits)
    elif kind == "masked":
        logits[rng.random(vocab) < 0.7] = -np.inf
        logits[rng.integers(vocab)] = 1.0
    elif kind == "peaked":
        logits[rng.integers(vocab)] = 60.0
    elif kind == "flat":
        logits[:] = 2.5
    return logits


@st.composite
def edits(draw: st.DrawFn) -> dict[str, Any]:
    """Biases, penalties, what was said and whether there is a mask; ids are cut to the vocabulary by `within`."""
    if draw(st.booleans()):
        return {}
    penalty = st.one_of(st.just(0.0), st.floats(-2, 2, width=32))
    ids = st.lists(st.integers(0, 399), max_size=30)
    return {
        "presence_penalty": draw(penalty),
        "frequency_penalty": draw(penalty),
        "repetition_penalty": draw(st.one_of(st.just(1.0), st.floats(0.015625, 10, width=32))),
        "bias": draw(st.dictionaries(st.integers(0, 399), st.floats(-100, 100, width=32), max_size=10)),
        "prompt": draw(ids),
        "reply": draw(ids),
        "mask": draw(st.booleans()),
    }


def within(edits: dict[str, Any], vocab: int, seed: int) -> dict[str, Any]:
    if not edits:
        return {}
    mask = None
    if edits["mask"]:
        rng = np.random.default_rng(seed)
        mask = rng.integers(0, 2**32, sampling.mask_words(vocab), dtype=np.uint32)
        mask[rng.random(len(mask)) < 0.3] = 0
        mask[rng.random(len(mask)) < 0.3] = 2**32 - 1
        allowed = int(rng.integers(vocab))
        mask[allowed // 32] |= np.uint32(1 << allowed % 32)
    return {
        **edits,
        "bias": {token % vocab: bias for token, bias in edits["bias"].items()},
        "prompt": [token % vocab for token in edits["prompt"]],
        "reply": [token % vocab for token in edits["reply"]],
        "mask": mask,
    }


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert reference.philox4x32(counter, key) == words


@pytest.mark.parametrize("isa", ISAS)
@settings(deadline=None, max_examples=150)
@given(
    vocab=st.integers(1, 400),
    rows=st.integers(0, 10_000),
    kind=st.sampled_from(["plain", "ties", "masked", "peaked", "flat"]),
    temperature=st.one_of(st.sampled_from([0.0, 1e-45, 1e-39, 1e-30, 1.0, 100.0]), st.floats(0.01, 5)),
    top_p=st.one_of(st.sampled_from([1.0, 1e-30, 0.999999]), st.floats(0.01, 1)),
    top_k=st.one_of(st.just(0), st.integers(1, 450)),
    min_p=st.one_of(st.just(0.0), st.sampled_from([1.0, 1e-30]), st.floats(0, 1)),
    edits=edits(),
    noise=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
)
def test_equals_the_reference(
    isa: str,
    vocab: int,
    rows: int,
    kind: str,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    edits: dict[str, Any],
    noise: tuple[int, int, int],
) -> None:
    logits = logits_of(vocab, rows, kind)
    arguments = {
        "min_p": min_p,
        **within(edits, vocab, rows),
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": noise[0],
        "choice": noise[1],
        "position": noise[2],
    }
    assert sampling.sample(logits, **arguments, isa=isa) == reference.sample(logits, **arguments)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [49152, 128_003])
def test_equals_the_reference_on_real_vocabularies(isa: str, vocab: int) -> None:
    logits = logits_of(vocab, 7, "plain")
    for position, (top_p, top_k) in enumerate([(1.0, 0), (0.9, 0), (0.999, 0), (1.0, 50), (0.8, 1000)]):
        for seed in SEEDS[-3:]:
            arguments = {
                "temperature": 0.9,
                "top_p": top_p,
                "top_k": top_k,
                "seed": seed,
                "position": position,
            }
            assert sampling.sample(logits, **arguments, isa=isa) == reference.sample(logits, **arguments)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 203, 1000])
def test_greedy_takes_the_first_maximum(isa: str, vocab: int) -> None:
    for first in {0, vocab // 2, vocab - 1}:
        logits = np.full(vocab, -np.inf, dtype=np.float32)
        logits[first:] = 3.0
        # The inverse of the last two is infinite in float32.
        for temperature in (0.0, 1e-45, 1e-39):
            got = sampling.sample(logits, temperature=temperature, top_p=0.9, seed=1, isa=isa)
            assert got == first


@pytest.mark.parametrize("isa", ISAS)
def test_top_k_of_1_and_a_tiny_top_p_leave_the_first_maximum(isa: str) -> None:
    for kind in ("plain", "ties", "masked", "flat"):
        logits = logits_of(203, 3, kind)
        for position in range(200):
            noise = {"temperature": 5.0, "seed": 9, "position": position, "isa": isa}
            assert sampling.sample(logits, top_k=1, **noise) == np.argmax(logits)
            assert sampling.sample(logits, top_p=1e-30, **noise) == np.argmax(logits)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.95, 0), (1.0, 40), (0.95, 40)])
def test_masked_tokens_are_never_chosen(top_p: float, top_k: int) -> None:
    logits = logits_of(61, 5, "masked")
    chosen = {
        sampling.sample(logits, temperature=100.0, top_p=top_p, top_k=top_k, seed=2, position=i)
        for i in range(2000)
    }
    assert len(chosen) > 3
    assert np.isfinite(logits[list(chosen)]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 203, 49152])
def test_log_probabilities_are_those_of_float64_with_the_same_bits_on_each_set(isa: str, vocab: int) -> None:
    for kind in ("plain", "ties", "peaked", "flat"):
        logits = logits_of(vocab, 3, kind)
        ids, values = sampling.log_probabilities(logits, 20, isa=isa)
        known = min(20, vocab)
        expected_ids, expected = reference.log_probabilities(logits, 20)
        assert ids[: 1 + known].tolist() == expected_ids.tolist()
        assert (ids[1 + known :] == -1).all()
        # exp is good to about 1 ulp of float32 and the sum is in float64, so the logarithm is off by as much, and by rounding.
        tolerance = 4 * np.finfo(np.float32).eps * np.maximum(1.0, np.abs(expected))
        assert (np.abs(values[: 1 + known] - expected) <= tolerance).all()
        assert values.tobytes() == sampling.log_probabilities(logits, 20, isa="scalar")[1].tobytes()
    assert len(sampling.log_probabilities(logits, 0, isa=isa)[0]) == 1


def test_penalties_count_what_they_should() -> None:
    greedy: dict[str, Any] = {"temperature": 0.0, "prompt": [0], "reply": [1, 1, 2]}
    assert sampling.sample([5.0, 4.9, 4.8, 4.0], **greedy) == 0
    # The prompt counts for repetition only.
    assert sampling.sample([5.0, 4.9, 4.8, 4.0], presence_penalty=2.0, frequency_penalty=2.0, **greedy) == 0
    assert sampling.sample([5.0, 4.9, 4.8, 4.0], repetition_penalty=1.5, **greedy) == 3
    assert sampling.sample([0.0, 5.0, 4.5, 3.9], presence_penalty=1.0, **greedy) == 1
    assert sampling.sample([0.0, 5.0, 4.5, 3.9], frequency_penalty=0.55, **greedy) == 2
    assert sampling.sample([0.0, 5.0, 4.5, 3.9], frequency_penalty=0.61, **greedy) == 3
    # A negative logit moves away from zero, whatever its sign.
    assert sampling.sample([-1.0, -2.0, -2.0, -1.5], repetition_penalty=2.0, **greedy) == 3


def test_a_bias_comes_before_penalties_and_a_mask_beats_both() -> None:
    # (3 - 4) * 2 = -2; the penalty first would make it 3 / 2 - 4 = -2.5.
    greedy: dict[str, Any] = {"temperature": 0.0, "prompt": [0], "repetition_penalty": 2.0}
    assert sampling.sample([3.0, -1.9], bias={0: -4.0}, **greedy) == 1
    assert sampling.sample([3.0, -2.2], bias={0: -4.0}, **greedy) == 0
    mask = np.array([0b110], dtype=np.uint32)
    assert sampling.sample([3.0, -2.5, -9.0], bias={0: 100.0}, mask=mask, **greedy) == 1


def test_edits_leave_the_logits_as_they_were() -> None:
    logits = logits_of(100, 4, "plain")
    before = logits.copy()
    sampling.sample(logits, temperature=1.0, bias={3: 5.0}, reply=[1, 2], presence_penalty=1.0)
    assert np.array_equal(logits, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": {5: 1.0}}, "outside the vocabulary"),
        ({"bias": {-1: 1.0}}, "outside the vocabulary"),
        ({"reply": [0, 5]}, "outside the vocabulary"),
        ({"prompt": [-1]}, "outside the vocabulary"),
        ({"mask": np.zeros(0, dtype=np.uint32)}, "a bit for each token"),
    ],
)
def test_ids_outside_the_vocabulary_never_reach_memory(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampling.sample(np.zeros(5), temperature=1.0, **change)


@pytest.mark.parametrize("field", range(8))
@pytest.mark.parametrize("value", [-2, 4])
def test_rows_that_point_outside_their_arrays_are_refused(field: int, value: int) -> None:
    fields = [0, 1, 0, 3, 1, 0, 0, 0]
    if field == 7 or (field == 5 and value < 0) or (field == 6 and value < 0):
        return  # unused; off
    fields[field] = value
    row = sampling.SAMPLING_ROW.pack(1.0, 1.0, 0.0, 0, 0.0, 0.0, 1.0, 0, 0, 0, *fields)
    arrays = _native.SamplingArrays(
        np.frombuffer(row, dtype=np.uint8).reshape(1, -1),
        history=np.zeros(3, dtype=np.int32),
        bias_ids=np.zeros(1, dtype=np.int32),
        bias_values=np.zeros(1, dtype=np.float32),
        masks=np.full((1, 1), 2**32 - 1, dtype=np.uint32),
        logprob_ids=np.zeros((1, 1), dtype=np.int32),
        logprobs=np.zeros((1, 1), dtype=np.float32),
    )
    with pytest.raises(ValueError, match="sampling:"):
        _native.sample_rows(np.zeros((1, 5), dtype=np.float32), arrays, np.zeros(1, dtype=np.int32))


@pytest.mark.parametrize("isa", ISAS)
def test_broken_logits_give_some_token_of_the_vocabulary(isa: str) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        for logits in (np.full(37, bad, dtype=np.float32), np.array([1.0, bad, 2.0], dtype=np.float32)):
            for top_p, top_k in ((1.0, 0), (0.5, 0), (1.0, 2), (0.5, 2)):
                for min_p in (0.0, 0.1):
                    options: dict[str, Any] = {"top_p": top_p, "top_k": top_k, "min_p": min_p}
                    got = sampling.sample(logits, temperature=1.0, **options, isa=isa)
                    assert 0 <= got < len(logits)
            ids, _ = sampling.log_probabilities(logits, 3, isa=isa)
            assert all(-1 <= token < len(logits) for token in ids)


def expected_shares(logits: Floats, temperature: float, top_p: float, top_k: int) -> npt.NDArray[np.float64]:
    """Probabilities in float64, written from the definition."""
    shares = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    order = np.argsort(-shares, kind="stable")
    if top_k:
        shares[order[top_k:]] = 0
    shares /= shares.sum()
    kept = np.searchsorted(np.cumsum(shares[order]), top_p) + 1
    shares[order[kept:]] = 0
    return np.asarray(shares / shares.sum())


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.6, 1.0, 0), (1.5, 0.83, 0), (1.0, 1.0, 9), (1.3, 0.7, 12)],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_shares_are_those_of_the_distribution(
    seed: int, temperature: float, top_p: float, top_k: int
) -> None:
    logits = np.random.default_rng(1).normal(0, 1.2, 37).astype(np.float32)
    shares = expected_shares(logits, temperature, top_p, top_k)
    draws = 20_000
    counts = Counter(
        sampling.sample(
            logits, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, position=position
        )
        for position in range(draws)
    )
    assert set(counts) <= set(np.flatnonzero(shares).tolist())
    observed = np.array([counts[i] for i in np.flatnonzero(shares)])
    expected = shares[shares > 0] * draws
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    # The seeds are fixed, so this passes always or never; 5 standard deviations above the mean is one chance in 10^5 or so.
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_each_part_of_the_noise_matters() -> None:
    logits = np.zeros(50_000, dtype=np.float32)
    noises = [
        {"seed": 0},
        {"seed": 1},
        {"seed": 2**32},
        {"choice": 1},
        {"position": 1},
        {"position": 2**32},
    ]
    drawn = [sampling.sample(logits, temperature=1.0, **noise) for noise in noises]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.zeros(0)}, "empty"),
        ({"logits": np.zeros((2, 2))}, "dimensions"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"choice": 2**32}, "choice"),
        ({"position": -1}, "position"),
    ],
)
def test_parameters_out_of_range_are_named(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"logits": np.zeros(5), "temperature": 1.0}
    with pytest.raises(ValueError, match=message):
        sampling.sample(**{**arguments, **change})  # type: ignore[arg-type]
