"""Matrix products equal the numpy reference bit for bit on every instruction set, however the work is cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.kernels import gemm
from duologue.kernels.gemm import Epilogue, PackedWeight, pack_weight
from duologue.kernels.reference import gemm as reference
from duologue.kernels.reference import rows as reference_rows
from tests.kernels.isas import ISAS

Case = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def make_case(m: int, n: int, k: int, seed: int = 0) -> Case:
    """a, a_scale, w, w_scale, bias; a third of the codes sit at the ends of the range."""
    rng = np.random.default_rng([seed, m, n, k])

    def codes(rows: int) -> np.ndarray:
        values = rng.integers(-127, 128, (rows, k))
        ends = rng.choice([-127, 127], (rows, k))
        return np.where(rng.random((rows, k)) < 0.3, ends, values).astype(np.int8)

    scales = [(rng.random(count) * 0.02 + 1e-4).astype(np.float32) for count in (m, n)]
    return codes(m), scales[0], codes(n), scales[1], rng.standard_normal(n).astype(np.float32)


def gated_columns(n: int) -> np.ndarray:
    """Packed column of each source row of a gated pair."""
    row = np.arange(n // 2)
    gate = row // 16 * 32 + row % 16
    return np.concatenate([gate, gate + 16])


shapes = st.tuples(st.integers(1, 40), st.integers(1, 200), st.integers(1, 300))


@pytest.mark.parametrize("isa", ISAS)
@given(shape=shapes, seed=st.integers(0, 3))
@settings(deadline=None, max_examples=120)
def test_accumulators_equal_reference(isa: str, shape: tuple[int, int, int], seed: int) -> None:
    a, _, w, w_scale, _ = make_case(*shape, seed)
    acc = gemm.gemm_int8_accumulators(a, pack_weight(w, w_scale), isa=isa)
    np.testing.assert_array_equal(acc[:, : shape[1]], reference.gemm_int8_accumulators(a, w))
    assert not acc[:, shape[1] :].any()


@pytest.mark.parametrize("isa", ISAS)
@given(shape=shapes, with_bias=st.booleans())
@settings(deadline=None, max_examples=80)
def test_epilogues_equal_reference(isa: str, shape: tuple[int, int, int], with_bias: bool) -> None:
    m, n, k = shape
    a, a_scale, w, w_scale, bias = make_case(m, 2 * n, k)
    b = bias if with_bias else None
    plain, gated = pack_weight(w, w_scale, b), pack_weight(w, w_scale, b, gated=True)
    expected = reference.gemm_int8(a, a_scale, w, w_scale, b)
    np.testing.assert_array_equal(gemm.gemm_int8(a, a_scale, plain, isa=isa), expected)
    out = np.random.default_rng(1).standard_normal((m, 2 * n)).astype(np.float32)
    expected = reference.gemm_int8_add(out, a, a_scale, w, w_scale, b)
    np.testing.assert_array_equal(gemm.gemm_int8(a, a_scale, plain, Epilogue.ADD, out=out, isa=isa), expected)
    expected = reference.gemm_int8_gated_silu(a, a_scale, w, w_scale, b)
    np.testing.assert_array_equal(gemm.gemm_int8(a, a_scale, gated, Epilogue.GATED_SILU, isa=isa), expected)


@pytest.mark.parametrize("isa", ISAS)
@given(shape=shapes, limit=st.sampled_from([0.0, 0.5, 20.0]))
@settings(deadline=None, max_examples=60)
def test_activations_and_limits_equal_reference(isa: str, shape: tuple[int, int, int], limit: float) -> None:
    m, n, k = shape
    a, a_scale, w, w_scale, bias = make_case(m, 2 * n, k)
    y = reference.gemm_int8(a, a_scale, w, w_scale, bias)
    limited = reference_rows.clamp(y, limit)
    gate, up = limited[:, :n], limited[:, n:]
    plain, pair = pack_weight(w, w_scale, bias), pack_weight(w, w_scale, bias, gated=True)
    for epilogue, packed, expected in (
        (Epilogue.STORE, plain, limited),
        (Epilogue.RELU2, plain, reference_rows.relu2(limited)),
        (Epilogue.GATED_SILU, pair, reference_rows.silu_mul(gate, up)),
        (Epilogue.GATED_GELU, pair, reference_rows.gelu_mul(gate, up)),
    ):
        got = gemm.gemm_int8(a, a_scale, packed, epilogue, limit=limit, isa=isa)
        np.testing.assert_array_equal(got, expected, err_msg=epilogue.name)
    if limit > 0:
        got = gemm.gemm_int8(a, a_scale, plain, Epilogue.SOFTCAP, limit=limit, isa=isa)
        np.testing.assert_array_equal(got, reference_rows.softcap(y, np.float32(limit)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "shape", [(1, 192, 576), (3, 96, 1540), (9, 320, 1024), (130, 130, 1536), (300, 65, 96)]
)
def test_several_blocks_of_rows_and_depth(isa: str, shape: tuple[int, int, int]) -> None:
    a, a_scale, w, w_scale, bias = make_case(*shape)
    got = gemm.gemm_int8(a, a_scale, pack_weight(w, w_scale, bias), isa=isa)
    np.testing.assert_array_equal(got, reference.gemm_int8(a, a_scale, w, w_scale, bias))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("gated", [False, True])
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_any_cut_gives_the_same_bits(isa: str, gated: bool, data: st.DataObject) -> None:
    m, half, k = data.draw(st.tuples(st.integers(1, 30), st.integers(1, 150), st.integers(1, 150)))
    a, a_scale, w, w_scale, bias = make_case(m, 2 * half, k)
    packed = pack_weight(w, w_scale, bias, gated=gated)
    epilogue = Epilogue.GATED_SILU if gated else Epilogue.STORE
    whole = gemm.gemm_int8(a, a_scale, packed, epilogue, isa=isa)
    unit = 32 if gated else 16
    units = packed.n_padded // unit
    row_cuts = sorted({0, m, *data.draw(st.lists(st.integers(0, m), max_size=4))})
    column_cuts = sorted({0, units, *data.draw(st.lists(st.integers(0, units), max_size=4))})
    cut = np.full_like(whole, np.nan)
    for rows in pairwise(row_cuts):
        for begin, end in pairwise(column_cuts):
            columns = (begin * unit, end * unit)
            gemm.gemm_int8(a, a_scale, packed, epilogue, out=cut, rows=rows, columns=columns, isa=isa)
    np.testing.assert_array_equal(cut, whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", range(1, 12))
def test_extreme_codes(isa: str, m: int) -> None:
    """Every pair at +-127: byte pair sums would saturate int16, and products of sums reach 254 * 254."""
    k = 1536
    for sign_a, sign_w in [(1, 1), (1, -1), (-1, 1), (-1, -1)]:
        a = np.full((m, k), sign_a * 127, dtype=np.int8)
        w = np.full((64, k), sign_w * 127, dtype=np.int8)
        acc = gemm.gemm_int8_accumulators(a, pack_weight(w, np.ones(64, np.float32)), isa=isa)
        assert (acc == sign_a * sign_w * 127 * 127 * k).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("sign", [1, -1])
def test_deepest_product_does_not_overflow(isa: str, m: int, sign: int) -> None:
    a = np.full((m, gemm.MAX_DEPTH), 127, dtype=np.int8)
    w = np.full((16, gemm.MAX_DEPTH), sign * 127, dtype=np.int8)
    acc = gemm.gemm_int8_accumulators(a, pack_weight(w, np.ones(16, np.float32)), isa=isa)
    assert (acc[:, :16] == sign * 127 * 127 * gemm.MAX_DEPTH).all()


@pytest.mark.parametrize("isa", ISAS)
def test_strided_and_misaligned_inputs(isa: str) -> None:
    a, a_scale, w, w_scale, _ = make_case(7, 70, 101)
    expected = reference.gemm_int8(a, a_scale, w, w_scale)
    wide = np.zeros((7, 203), dtype=np.int8)
    wide[:, 1:203:2] = a
    packed = pack_weight(np.asfortranarray(w), w_scale)
    np.testing.assert_array_equal(gemm.gemm_int8(wide[:, 1:203:2], a_scale, packed, isa=isa), expected)
    # Packed bytes that start one past a cache line, and activations of whole words at an odd address.
    moved = np.empty(packed.codes.nbytes + 1, dtype=np.int8)[1:].reshape(packed.codes.shape)
    moved[...] = packed.codes
    raw = np.zeros(7 * 104 + 1, dtype=np.int8)[1:].reshape(7, 104)
    raw[:, :101] = a
    deep = PackedWeight(moved, packed.compensation, packed.scale, None, packed.n, 104)
    np.testing.assert_array_equal(gemm.gemm_int8(raw, a_scale, deep, isa=isa), expected)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (64, 4), (66, 7), (130, 576)])
def test_packed_layout(gated: bool, n: int, k: int) -> None:
    _, _, w, w_scale, bias = make_case(1, n, k)
    packed = pack_weight(w, w_scale, bias, gated=gated)
    unpacked = packed.codes.transpose(0, 2, 1, 3).reshape(packed.n_padded, -1)  # [N_padded, K_padded]
    columns = gated_columns(n) if gated else np.arange(n)
    np.testing.assert_array_equal(unpacked[columns, :k], w)
    np.testing.assert_array_equal(packed.scale[columns], w_scale)
    assert packed.bias is not None
    np.testing.assert_array_equal(packed.bias[columns], bias)
    np.testing.assert_array_equal(packed.compensation[columns], 128 * w.astype(np.int32).sum(axis=1))
    padding = np.setdiff1d(np.arange(packed.n_padded), columns)
    assert not unpacked[padding].any()
    assert not unpacked[:, k:].any()
    assert not packed.scale[padding].any()
    assert not packed.compensation[padding].any()
    assert packed.nbytes == packed.codes.nbytes + 12 * packed.n_padded


def test_packing_refuses_what_cannot_be_exact() -> None:
    ones = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="K = 66312 is over 66311"):
        pack_weight(np.zeros((1, gemm.MAX_DEPTH + 1), np.int8), ones)
    with pytest.raises(ValueError, match="row 2 holds the code -128"):
        pack_weight(np.array([[1], [2], [-128]], np.int8), np.ones(3, np.float32))
    with pytest.raises(ValueError, match="as many gate rows as up rows"):
        pack_weight(np.zeros((3, 4), np.int8), np.ones(3, np.float32), gated=True)
    with pytest.raises(ValueError, match="at least one row"):
        pack_weight(np.zeros((0, 4), np.int8), np.ones(0, np.float32))
    with pytest.raises(ValueError, match="scale and bias must be"):
        pack_weight(np.zeros((2, 4), np.int8), ones)
    with pytest.raises(ValueError, match="scale holds a NaN"):
        pack_weight(np.zeros((1, 4), np.int8), np.array([np.nan], np.float32))
    with pytest.raises(ValueError, match="codes must be a matrix of int8"):
        pack_weight(np.zeros((1, 4), np.uint8), ones)


def test_bad_arguments_are_named() -> None:
    a, a_scale, w, w_scale, _ = make_case(3, 64, 8)
    packed = pack_weight(w, w_scale)
    with pytest.raises(ValueError, match="a has 7 columns but the weight's K is 8"):
        gemm.gemm_int8(a[:, :7], a_scale, packed)
    with pytest.raises(ValueError, match="a must be a matrix of int8"):
        gemm.gemm_int8(a.astype(np.int16), a_scale, packed)
    with pytest.raises(ValueError, match=r"a_scale \[M\]"):
        gemm.gemm_int8(a, a_scale[:2], packed)
    with pytest.raises(ValueError, match="out is required"):
        gemm.gemm_int8(a, a_scale, packed, Epilogue.ADD)
    for epilogue in (Epilogue.GATED_SILU, Epilogue.GATED_GELU):
        with pytest.raises(ValueError, match="gated pair"):
            gemm.gemm_int8(a, a_scale, packed, epilogue)
    for epilogue, limit in ((Epilogue.ADD, 1.0), (Epilogue.SOFTCAP, 0.0), (Epilogue.STORE, -1.0)):
        with pytest.raises(ValueError, match=f"limit {limit} does not go with {epilogue.name}"):
            gemm.gemm_int8(a, a_scale, packed, epilogue, out=np.zeros((3, 64), np.float32), limit=limit)
    out = np.zeros((3, 64), np.float32)
    with pytest.raises(ValueError, match="multiples of 16"):
        gemm.gemm_int8(a, a_scale, packed, out=out, columns=(8, 64))
    with pytest.raises(ValueError, match="row range"):
        gemm.gemm_int8(a, a_scale, packed, out=out, rows=(0, 4))
    with pytest.raises(ValueError, match="out must be a C-contiguous"):
        gemm.gemm_int8(a, a_scale, packed, out=np.zeros((64, 3), np.float32).T)
    with pytest.raises(RuntimeError, match="is unknown; choose one of"):
        gemm.gemm_int8(a, a_scale, packed, isa="neon")


@pytest.mark.parametrize("isa", ISAS)
@given(st.tuples(st.integers(1, 30), st.integers(1, 90), st.integers(1, 120)), st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_fp32_equals_reference(isa: str, shape: tuple[int, int, int], threads: int) -> None:
    m, n, k = shape
    rng = np.random.default_rng(list(shape))
    a = rng.standard_normal((m, k)).astype(np.float32)
    w = rng.standard_normal((n, k)).astype(np.float32)
    np.testing.assert_array_equal(gemm.gemm_f32(a, w, threads=threads, isa=isa), reference.gemm_f32(a, w))


@pytest.mark.parametrize("isa", ISAS)
def test_fp32_over_several_blocks(isa: str) -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal((37, 1540)).astype(np.float32)
    w = rng.standard_normal((203, 3080)).astype(np.float32)[:, ::2]
    np.testing.assert_array_equal(gemm.gemm_f32(a, w, threads=2, isa=isa), reference.gemm_f32(a, w))


def test_fp32_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="a has 3 columns but w has 4"):
        gemm.gemm_f32(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="threads must be at least 1"):
        gemm.gemm_f32(np.zeros((2, 3)), np.zeros((2, 3)), threads=0)
    assert gemm.gemm_f32(np.zeros((0, 3)), np.zeros((2, 3))).shape == (0, 2)
