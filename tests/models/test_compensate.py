"""Compensated rounding: on the int8 grid, better than plain rounding, and of one order of operations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from duologue.kernels.gemm import gemm_f32
from duologue.kernels.rows import quantize_rows
from duologue.models.compensate import (
    DAMPING,
    compensation,
    gram_matrix,
    grid_scale,
    round_compensated,
)

N, K = 1100, 100  # neither a multiple of a block nor of a thread's rows

Floats = npt.NDArray[np.float32]


def _case(seed: int) -> tuple[Floats, Floats, Floats]:
    """Weights [N, K], correlated inputs [400, K] and their Gram matrix."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((400, 20)) @ rng.standard_normal((20, K)) + 0.3 * rng.standard_normal((400, K))
    channels = np.ascontiguousarray(x.T, dtype=np.float32)
    w = rng.standard_normal((N, K)).astype(np.float32)
    return w, channels.T, gemm_f32(channels, channels)


def _plain(w: Floats) -> Floats:
    codes, scale = quantize_rows(w)
    return codes * scale[:, None]


def _error(w: Floats, rounded: Floats, x: Floats) -> float:
    return float(np.square((w - rounded).astype(np.float64) @ x.T).mean())


def test_products_err_less_than_with_plain_rounding() -> None:
    w, x, gram = _case(0)
    rounded = round_compensated(w, compensation(gram))
    assert _error(w, rounded, x) < 0.2 * _error(w, _plain(w), x)


def test_the_quantiser_gives_back_the_very_weights() -> None:
    w, _, gram = _case(1)
    w[7] = 0
    w[:, 3] *= 50  # one column holds every row's largest weight
    rounded = round_compensated(w * np.float32(1e-3), compensation(gram))
    codes, scale = quantize_rows(rounded)
    np.testing.assert_array_equal(codes * scale[:, None], rounded)
    np.testing.assert_array_equal(np.abs(codes).max(axis=1), np.where(np.arange(N) == 7, 0, 127))


@pytest.mark.parametrize("channels", [1, 192, 400])
def test_half_a_gram_matrix_is_the_whole(channels: int) -> None:
    x = np.random.default_rng(6).standard_normal((channels, 70)).astype(np.float32)
    np.testing.assert_array_equal(gram_matrix(x, threads=2), gemm_f32(x, x))


def test_factors_give_back_the_damped_gram_matrix() -> None:
    _, _, gram = _case(2)
    by = compensation(gram)
    upper = by.shares.T.astype(np.float64)
    np.testing.assert_array_equal(upper, np.triu(upper))
    np.testing.assert_array_equal(np.diag(upper), 1.0)
    assert (np.diff(np.diag(gram)[by.order]) <= 0).all()
    damped = (gram + DAMPING * np.diag(gram).mean() * np.eye(K))[np.ix_(by.order, by.order)]
    inverse = np.linalg.inv(upper)
    pivots = inverse @ damped @ inverse.T
    np.testing.assert_allclose(pivots, np.diag(np.diag(pivots)), atol=1e-4 * np.diag(pivots).max())


def test_uncorrelated_inputs_leave_plain_rounding() -> None:
    w, _, _ = _case(3)
    rounded = round_compensated(w, compensation(np.eye(K, dtype=np.float32)))
    scale = grid_scale(np.abs(w).max(axis=1))[:, None]
    np.testing.assert_array_equal(rounded, np.rint(w / scale) * scale)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing(threads: int) -> None:
    w, _, gram = _case(4)
    one, several = compensation(gram), compensation(gram, threads=threads)
    np.testing.assert_array_equal(one.shares, several.shares)
    np.testing.assert_array_equal(round_compensated(w, one), round_compensated(w, several, threads=threads))


def test_each_row_is_rounded_in_the_order_stated() -> None:
    w, _, gram = _case(5)
    by = compensation(gram)
    rounded = round_compensated(w, by)[:, by.order]
    for n in (0, N - 1):
        row, scale = w[n, by.order], grid_scale(np.abs(w[n : n + 1]).max(axis=1))[0]
        errors = np.zeros(K, dtype=np.float32)
        for k in range(K):
            block = k // 48 * 48
            early, late = np.float32(0), row[k]
            for j in range(block):
                early += by.shares[k, j] * errors[j]
            late += early
            for j in range(block, k):
                late += by.shares[k, j] * errors[j]
            code = np.clip(np.rint(late / scale), -127, 127)
            if abs(row[k]) == np.abs(row).max():
                code = np.copysign(np.float32(127), row[k])
            assert rounded[n, k] == code * scale
            errors[k] = row[k] - rounded[n, k]
