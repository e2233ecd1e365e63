"""Row-wise reference kernels in numpy float32: exponential, RMSNorm, the quantiser, RoPE.

Each line is one IEEE operation, in the same order as the C++, so results are compared with `==`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]

LANES = 16
ZERO_AMAX = np.float32(2.0**-120)
"""Rows whose largest magnitude is below this count as zero: scale 1, zero codes."""

_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)


def _pow2(n: Floats) -> Floats:
    bits = (n.astype(np.int32) + 127).astype(np.uint32) << np.uint32(23)
    return np.asarray(bits.view(np.float32))


def _reduced_exp(x: Floats) -> tuple[Floats, Floats]:
    """exp(x) = p * 2^n with p near 1."""
    n = np.rint(x * np.float32(1.44269504))
    r = x - n * np.float32(0.693359375)
    r = r + n * np.float32(2.12194440e-4)
    p = np.full_like(r, np.float32(_POLYNOMIAL[0]))
    for coefficient in _POLYNOMIAL[1:]:
        p = p * r + np.float32(coefficient)
    return (p * r) * r + r + np.float32(1.0), n


def exp(x: Floats) -> Floats:
    """exp(x) elementwise, about 1 ulp; exactly 0 below -87.3, infinite above 88.7."""
    x = np.asarray(x, dtype=np.float32)
    p, n = _reduced_exp(np.maximum(np.minimum(x, np.float32(89.0)), np.float32(-88.0)))
    half = np.rint(n * np.float32(0.5))
    with np.errstate(over="ignore"):
        scaled = (p * _pow2(half)) * _pow2(n - half)
    return np.where(x < np.float32(-87.3), np.float32(0.0), scaled)


def exp_nonpositive(x: Floats) -> Floats:
    """exp(x) for x <= 0, the spelling used by softmax."""
    x = np.asarray(x, dtype=np.float32)
    p, n = _reduced_exp(np.maximum(x, np.float32(-87.3)))
    return np.where(x < np.float32(-87.3), np.float32(0.0), p * _pow2(n))


def _times_sigmoid(x: Floats, z: Floats) -> Floats:
    """x / (1 + exp(-z))."""
    return np.asarray(x / (np.float32(1.0) + exp(np.float32(0.0) - z)))


def silu(x: Floats) -> Floats:
    """x / (1 + exp(-x))."""
    return _times_sigmoid(x, x)


def gelu(x: Floats) -> Floats:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, by (1 + tanh(u)) / 2 = sigmoid(2u)."""
    return _times_sigmoid(x, x * ((x * x) * np.float32(0.0713548163) + np.float32(1.59576912)))


def softcap(x: Floats, cap: np.float32) -> Floats:
    """cap * tanh(x / cap) = 2 cap sigmoid(2 x / cap) - cap."""
    double = np.full_like(x, np.float32(2.0) * cap)
    return _times_sigmoid(double, x * (np.float32(2.0) / cap)) - cap


def clamp(x: Floats, limit: float) -> Floats:
    """x within [-limit, limit]; 0 means no limit."""
    return np.asarray(np.clip(x, -np.float32(limit), np.float32(limit))) if limit > 0 else x


def relu2(x: Floats) -> Floats:
    """max(x, 0)^2."""
    positive = np.maximum(x, np.float32(0.0))
    return np.asarray(positive * positive)


def silu_mul(gate: Floats, up: Floats) -> Floats:
    """silu(gate) * up."""
    return silu(gate) * up


def gelu_mul(gate: Floats, up: Floats) -> Floats:
    """gelu(gate) * up."""
    return gelu(gate) * up


def reduce_add(lanes: Floats) -> Floats:
    """Sum over the last axis of 16 lanes by the one fixed tree: i with i+8, then i+4, i+2, i+1."""
    width = LANES // 2
    while width:
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
        width //= 2
    return lanes[..., 0]


def quantize_rows(x: Floats) -> tuple[Codes, Floats]:
    """Symmetric int8 codes and scale of each row: x [M, K] -> codes [M, K], scale [M].

    scale = amax / 127; code = clamp(round_half_even(x * (127 / amax)), -127, 127).
    """
    x = np.asarray(x, dtype=np.float32)
    amax = np.abs(x).max(axis=1, initial=np.float32(0.0))  # [M]
    zero = ~(amax >= ZERO_AMAX)
    safe = np.where(zero, np.float32(1.0), amax)
    inv = np.float32(127.0) / safe
    codes = np.clip(np.rint(x * inv[:, None]), -127, 127)
    codes[zero] = 0
    return codes.astype(np.int8), np.where(zero, np.float32(1.0), amax / np.float32(127.0))


def rmsnorm_rows(x: Floats, weight: Floats, eps: float) -> Floats:
    """(x / sqrt(mean(x^2) + eps)) * weight for each row of x [M, K]."""
    x = np.asarray(x, dtype=np.float32)
    k = x.shape[1]
    body = k // LANES * LANES
    lanes = np.zeros((x.shape[0], LANES), dtype=np.float32)
    for i in range(0, body, LANES):
        lanes = lanes + x[:, i : i + LANES] * x[:, i : i + LANES]
    total = reduce_add(lanes)
    for i in range(body, k):
        total = total + x[:, i] * x[:, i]
    r = np.float32(1.0) / np.sqrt(total / np.float32(k) + np.float32(eps))
    return np.asarray((x * r[:, None]) * weight)


def rmsnorm_quantize_rows(x: Floats, weight: Floats, eps: float) -> tuple[Codes, Floats]:
    """`quantize_rows` of `rmsnorm_rows`."""
    return quantize_rows(rmsnorm_rows(x, weight, eps))


def rope_rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate heads by halves: x [M, H, D], cos and sin [M, D/2] -> [M, H, D]."""
    half = x.shape[2] // 2
    lower, upper = x[:, :, :half], x[:, :, half:]
    c, s = cos[:, None, :], sin[:, None, :]
    return np.concatenate([lower * c - upper * s, upper * c + lower * s], axis=2)
