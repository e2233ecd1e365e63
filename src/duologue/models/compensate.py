"""Rounds weights to int8 one column after another, each making up for the rounding errors of those before it.

Plain rounding minimises the error of every weight. What counts is the error of the product, whose expectation is
e H e^T for a row's errors e and the inputs' Gram matrix H: where inputs are correlated, the error of one weight can be cancelled
by its neighbours'. With H = U D U^T, U unit upper triangular, that expectation is the sum of D_k (e U)_k^2, and rounding
w_k + sum_{j<k} e_j U_jk makes every term as small as the ones before it allow. This is GPTQ (Frantar et al., 2022,
arXiv 2210.17323) in the form of LDLQ (Chee et al., 2023, arXiv 2307.13304).

Only `gemm_f32` and elementwise numpy, both of one order of operations, so equal input gives equal bits on every machine.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.kernels.gemm import gemm_f32

Floats = npt.NDArray[np.float32]

DAMPING = 0.03
"""Added to the Gram matrix's diagonal, as a share of its mean: less trust in a short text's correlations."""

_BLOCK_COLUMNS = 48  # eight of gemm_f32's tiles of six rows
_GRAM_ROWS = 192
_THREAD_ROWS = 1024
_LARGEST_CODE = np.float32(127.0)


@dataclass(frozen=True, slots=True, eq=False)
class Compensation:
    """In which order to round a row's K weights, and what an error adds to those still to come."""

    order: npt.NDArray[np.intp]  # [K]
    shares: Floats  # [K, K] in that order: row k, column j < k is U_jk


def gram_matrix(channels: Floats, *, threads: int = 1) -> Floats:
    """channels [K, n] times its transpose -> [K, K]: one half computed, the other copied."""
    k = len(channels)
    gram = np.empty((k, k), dtype=np.float32)
    for begin in range(0, k, _GRAM_ROWS):
        end = min(begin + _GRAM_ROWS, k)
        gram[begin:end, :end] = gemm_f32(channels[begin:end], channels[:end], threads=threads)
        gram[:begin, begin:end] = gram[begin:end, :begin].T
    return gram


def compensation(gram: Floats, *, threads: int = 1) -> Compensation:
    """From the inputs' Gram matrix [K, K]: busiest channels first, while all others can still make up for them."""
    order = np.argsort(-np.diag(gram), kind="stable")
    # U D U^T in this order is L D L^T in the reverse one.
    last_first = order[::-1]
    damping = np.float32(DAMPING) * np.float32(np.add.accumulate(np.diag(gram))[-1] / np.float32(len(gram)))
    lower = _unit_lower(gram[np.ix_(last_first, last_first)], damping, threads)
    return Compensation(order, np.ascontiguousarray(lower[::-1, ::-1].T))


def round_compensated(w: Floats, by: Compensation, *, threads: int = 1) -> Floats:
    """w [N, K] on the grid of int8 codes with one scale per row, rounded so that the products' errors are small.

    `quantize_rows` of the result gives exactly these codes and scales: a scale has 17 significant bits, so that its product
    with any code is exact, and the largest weight of a row keeps the code 127. The result does not depend on `threads`.
    """
    parts = [w[begin : begin + _THREAD_ROWS] for begin in range(0, len(w), _THREAD_ROWS)]
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate(list(pool.map(lambda part: _round_rows(part, by), parts)))


def grid_scale(amax: Floats) -> Floats:
    """amax / 127 rounded up to 17 significant bits; 1 for a row of zeros."""
    mantissa, exponent = np.frexp(amax / _LARGEST_CODE)
    scale = np.ldexp(np.ceil(np.ldexp(mantissa, 17)), exponent - 17)
    return np.asarray(np.where(amax > 0, scale, 1.0), dtype=np.float32)


def _round_rows(w: Floats, by: Compensation) -> Floats:
    n, k = w.shape
    columns = np.ascontiguousarray(w[:, by.order].T)  # [K, N]: rows are the fastest axis
    amax = np.abs(columns).max(axis=0)
    scale = grid_scale(amax)
    errors = np.zeros((n, k), dtype=np.float32)
    rounded = np.empty_like(columns)
    for begin in range(0, k, _BLOCK_COLUMNS):
        end = min(begin + _BLOCK_COLUMNS, k)
        block = columns[begin:end]
        target = block + gemm_f32(by.shares[begin:end, :begin], errors[:, :begin])  # [end - begin, N]
        block_errors = np.empty_like(target)
        for c in range(end - begin):
            code = np.clip(np.rint(target[c] / scale), -_LARGEST_CODE, _LARGEST_CODE)
            largest = np.abs(block[c]) == amax
            code = np.where(largest, np.copysign(_LARGEST_CODE, block[c]), code)
            rounded[begin + c] = code * scale
            block_errors[c] = block[c] - rounded[begin + c]
            target[c + 1 :] += by.shares[begin + c + 1 : end, begin + c, None] * block_errors[c]
        errors[:, begin:end] = block_errors.T
    rounded *= amax > 0
    out = np.empty_like(w)
    out[:, by.order] = rounded.T
    return out


def _unit_lower(gram: Floats, damping: np.float32, threads: int) -> Floats:
    """L of gram + damping I = L D L^T."""
    k = len(gram)
    lower, pivots = np.eye(k, dtype=np.float32), np.empty(k, dtype=np.float32)
    for begin in range(0, k, _BLOCK_COLUMNS):
        end = min(begin + _BLOCK_COLUMNS, k)
        done = lower[begin:end, :begin] * pivots[:begin]
        panel = gram[begin:, begin:end] - gemm_f32(lower[begin:, :begin], done, threads=threads)
        for c in range(end - begin):
            # No pivot is below the damping but by rounding errors.
            pivot = pivots[begin + c] = max(panel[c, c] + damping, damping)
            below = panel[c + 1 :, c] / pivot
            lower[begin + c + 1 :, begin + c] = below
            panel[c + 1 :, c + 1 :] -= below[:, None] * panel[c + 1 : end - begin, c]
    return lower
