"""An orthogonal rotation of the residual stream, folded into the weights.

A few channels of the residual stream carry values tens of times larger than the rest, and one int8 scale per token then
wastes most of its range. Rotating the stream by a fixed orthogonal matrix spreads them over all channels; RMSNorm does not
notice once its weight is folded into the maps that follow, so the model computes the same function and serving pays
nothing. The idea of folding a Hadamard matrix in this way is QuaRot's (Ashkboos et al., 2024, arXiv 2404.00456).

The matrix is built from the prime factors of the width: Sylvester's Hadamard matrix for the twos, the reflection I - (2/p) J
for every odd prime p. It is applied factor by factor in float64 with additions in one order, so that equal weights give equal
codes on every machine; a library's matrix product would not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_BLOCK_ROWS = 128
"""Rows that are turned at once: all the intermediate results of a factor then fit into a core's cache."""


def prime_factors(n: int) -> list[int]:
    """Prime factors of n >= 1, ascending, repeated."""
    factors, p = [], 2
    while p * p <= n:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return [*factors, n] if n > 1 else factors


def rotate(x: npt.ArrayLike) -> Doubles:
    """x [..., d] times the rotation, in float64."""
    x = np.asarray(x)
    rows = x.reshape(-1, x.shape[-1])
    out: Doubles = np.empty(rows.shape, dtype=np.float64)
    for begin in range(0, len(rows), _BLOCK_ROWS):
        out[begin : begin + _BLOCK_ROWS] = _rotate_block(rows[begin : begin + _BLOCK_ROWS])
    return out.reshape(x.shape)


def _rotate_block(x: npt.NDArray[Any]) -> Doubles:
    out: Doubles = np.array(x, dtype=np.float64)
    shape = out.shape
    stride = shape[-1]
    twos = 0
    for p in prime_factors(shape[-1]):
        # The last axis seen as [before, p, after]: each factor mixes the middle.
        stride //= p
        blocks = out.reshape(-1, p, stride)
        if p == 2:
            twos += 1
            low, high = blocks[:, 0] + blocks[:, 1], blocks[:, 0] - blocks[:, 1]
            out = np.stack([low, high], axis=1)
        else:
            total = blocks[:, 0].copy()
            for i in range(1, p):
                total += blocks[:, i]
            out = blocks - (2.0 / p) * total[:, None, :]
    return out.reshape(shape) * 0.5 ** (twos // 2) * (np.sqrt(0.5) if twos % 2 else 1.0)


def rotate_rows(w: npt.ArrayLike) -> Doubles:
    """The rotation's transpose times w [d, k]: for maps that write to the rotated stream.

    Every factor is symmetric and they act on different axes, so the rotation is its own transpose and inverse.
    """
    w = np.asarray(w)
    out: Doubles = np.empty(w.shape, dtype=np.float64)
    for begin in range(0, w.shape[1], _BLOCK_ROWS):
        end = begin + _BLOCK_ROWS
        out[:, begin:end] = _rotate_block(np.ascontiguousarray(w[:, begin:end].T)).T
    return out
