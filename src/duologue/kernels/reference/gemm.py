"""Reference matrix products in numpy: exact int32 accumulators, the fp32 epilogue in the kernels' order.

Weights come unpacked, codes [N, K] and scale [N], so that the packing is tested too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels.reference.rows import Codes, Floats, silu

Ints = npt.NDArray[np.int32]


def gemm_int8_accumulators(a: Codes, w: Codes) -> Ints:
    """a [M, K] times w [N, K] transposed -> int32 [M, N]."""
    acc: Ints = a.astype(np.int32) @ w.astype(np.int32).T
    return acc


def gemm_int8(a: Codes, a_scale: Floats, w: Codes, w_scale: Floats, bias: Floats | None = None) -> Floats:
    """(float(acc) * a_scale) * w_scale (+ bias), each step rounded to fp32 -> [M, N]."""
    acc = gemm_int8_accumulators(a, w).astype(np.float32)
    y = (acc * a_scale[:, None]) * w_scale[None, :]
    return y if bias is None else y + bias[None, :]


def gemm_int8_add(
    residual: Floats, a: Codes, a_scale: Floats, w: Codes, w_scale: Floats, bias: Floats | None = None
) -> Floats:
    """`gemm_int8` added to a residual stream [M, N]."""
    return residual + gemm_int8(a, a_scale, w, w_scale, bias)


def gemm_int8_gated_silu(
    a: Codes, a_scale: Floats, w: Codes, w_scale: Floats, bias: Floats | None = None
) -> Floats:
    """silu(gate) * up -> [M, N/2]; the first half of w's rows is the gate."""
    y = gemm_int8(a, a_scale, w, w_scale, bias)
    half = w.shape[0] // 2
    return silu(y[:, :half]) * y[:, half:]


def gemm_f32(a: Floats, w: Floats) -> Floats:
    """a [M, K] times w [N, K] transposed -> fp32 [M, N], ascending k, multiply then add."""
    out = np.zeros((a.shape[0], w.shape[0]), dtype=np.float32)
    for k in range(a.shape[1]):
        out = out + a[:, k, None] * w[None, :, k]
    return out
