"""Row-wise kernels equal the numpy reference bit for bit on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from duologue.kernels import rows
from duologue.kernels.reference import rows as reference
from tests.kernels.isas import ISAS

SPECIALS = np.array(
    [0.0, -0.0, 1e-45, -1e-45, 1.17549435e-38, 7.5e-37, 7.6e-37, 0.5, 1.5, 2.5, -0.5, 1e30, -1e30, 3.4e38],
    dtype=np.float32,
)
floats32 = st.floats(min_value=-(2.0**126), max_value=2.0**126, width=32)
matrices = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=70), elements=floats32
)


@pytest.mark.parametrize("isa", ISAS)
@given(x=matrices)
@settings(deadline=None, max_examples=150)
def test_quantize_rows_equals_reference(isa: str, x: np.ndarray) -> None:
    codes, scale = rows.quantize_rows(x, isa=isa)
    expected_codes, expected_scale = reference.quantize_rows(x)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scale, expected_scale)
    assert codes.min(initial=0) >= -127


@pytest.mark.parametrize("isa", ISAS)
def test_quantize_rows_ties_zeros_and_denormals(isa: str) -> None:
    # With amax 127 every code is the value itself, so halves show the rounding: to even.
    x = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]], dtype=np.float32)
    codes, scale = rows.quantize_rows(x, isa=isa)
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -2, 126]]
    assert scale.tolist() == [1.0]
    tiny, tiny_scale = rows.quantize_rows(
        np.array([[0.0, -0.0, 1e-45], [7.5e-37, 0.0, 0.0]], dtype=np.float32), isa=isa
    )
    assert not tiny.any()
    assert tiny_scale.tolist() == [1.0, 1.0]
    assert rows.quantize_rows(np.array([[7.6e-37, -7.6e-37]], dtype=np.float32), isa=isa)[0].tolist() == [
        [127, -127]
    ]
    np.testing.assert_array_equal(
        rows.quantize_rows(SPECIALS[None], isa=isa)[0], reference.quantize_rows(SPECIALS[None])[0]
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantize_rows_names_the_tensor_that_is_not_finite(bad: float) -> None:
    x = np.zeros((3, 40), dtype=np.float32)
    x[1, 37] = bad
    with pytest.raises(ValueError, match=r"layers\.3\.down holds a NaN"):
        rows.quantize_rows(x, name="layers.3.down")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [1, 15, 16, 17, 576, 1536])
def test_rmsnorm_equals_reference(isa: str, k: int) -> None:
    rng = np.random.default_rng(k)
    x = rng.standard_normal((5, k)).astype(np.float32) * 30
    x[2] = 0
    weight = rng.standard_normal(k).astype(np.float32)
    np.testing.assert_array_equal(
        rows.rmsnorm_rows(x, weight, 1e-5, isa=isa), reference.rmsnorm_rows(x, weight, 1e-5)
    )
    codes, scale = rows.rmsnorm_quantize_rows(x, weight, 1e-5, isa=isa)
    expected_codes, expected_scale = reference.rmsnorm_quantize_rows(x, weight, 1e-5)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scale, expected_scale)


@pytest.mark.parametrize("isa", ISAS)
def test_exp_equals_reference_and_is_accurate(isa: str) -> None:
    edges = [0.0, -0.0, -87.2, -87.3, -87.4, -88.0, -1000.0, 88.0, 88.7, 89.0, 1000.0, -np.inf, np.inf]
    x = np.concatenate([np.linspace(-90, 90, 100_001), np.array(edges)]).astype(np.float32)
    got = rows.exp(x, isa=isa)
    np.testing.assert_array_equal(got, reference.exp(x))
    inside = (x > -87.2) & (x < 88.6)
    exact = np.exp(x[inside].astype(np.float64))
    # The polynomial and its six roundings stay within 2 ulp.
    assert (np.abs(got[inside] - exact) <= 2 * np.spacing(exact.astype(np.float32))).all()
    assert got[x < -87.3].max() == 0.0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(1,), (16,), (17,), (3, 5, 7)])
def test_gates_equal_reference(isa: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    gate, up = (rng.standard_normal(shape).astype(np.float32) * 20 for _ in range(2))
    np.testing.assert_array_equal(rows.silu_mul(gate, up, isa=isa), reference.silu_mul(gate, up))
    np.testing.assert_array_equal(rows.gelu_mul(gate, up, isa=isa), reference.gelu_mul(gate, up))


def test_gelu_and_caps_are_accurate() -> None:
    x = np.linspace(-12, 12, 20_001).astype(np.float32)
    exact = x.astype(np.float64)
    gelu = 0.5 * exact * (1 + np.tanh(np.sqrt(2 / np.pi) * (exact + 0.044715 * exact**3)))
    # exp's argument has an error of an ulp of itself, at most 2^-17 at 90, where the result is 1e-37; near 0 four roundings.
    assert np.abs(reference.gelu(x) - gelu).max() < 4e-6
    for cap in (1.0, 30.0, 50.0):
        # A difference of two numbers near 2 cap, each rounded.
        error = np.abs(reference.softcap(x, np.float32(cap)) - cap * np.tanh(exact / cap)).max()
        assert error <= 4 * np.spacing(np.float32(2 * cap))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [1, 16, 37, 96])
def test_added_rmsnorm_equals_reference(isa: str, k: int) -> None:
    rng = np.random.default_rng(k)
    x, added = rng.standard_normal((2, 5, k)).astype(np.float32)
    weight = rng.standard_normal(k).astype(np.float32)
    expected = x + reference.rmsnorm_rows(added, weight, 1e-5)
    np.testing.assert_array_equal(rows.rmsnorm_add_rows(x, added, weight, 1e-5, isa=isa), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
def test_rope_equals_reference(isa: str, head_dim: int) -> None:
    rng = np.random.default_rng(head_dim)
    x = rng.standard_normal((7, 3, head_dim)).astype(np.float32)
    angle = rng.standard_normal((7, head_dim // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    np.testing.assert_array_equal(rows.rope_rotate(x, cos, sin, isa=isa), reference.rope_rotate(x, cos, sin))


def test_non_contiguous_input_is_read_correctly() -> None:
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((9, 33)).astype(np.float32))
    np.testing.assert_array_equal(rows.quantize_rows(x)[0], reference.quantize_rows(x)[0])
