"""Row-wise kernels: the quantiser, RMSNorm, the gate, RoPE. See `reference.rows` for what each computes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels import _native

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.int8]


def as_floats(x: npt.ArrayLike, rank: int, name: str) -> Floats:
    """`x` as a C-contiguous float32 array of the given rank; ValueError naming it when the rank is wrong."""
    array = np.ascontiguousarray(x, dtype=np.float32)
    if array.ndim != rank:
        raise ValueError(f"{name} must have {rank} dimensions, not {array.ndim}")
    return array


def require_finite(x: Floats, name: str) -> None:
    """Raise ValueError naming the tensor when it holds a NaN or an infinity."""
    if not _native.all_finite(x.reshape(-1)):
        raise ValueError(f"{name} holds a NaN or an infinity; int8 codes cannot represent it")


def padded_depth(k: int) -> int:
    """Bytes of a row of k codes: rounded up to a multiple of 4, the tail zero."""
    return (k + 3) // 4 * 4


def quantize_rows(x: npt.ArrayLike, *, name: str = "x", isa: str = "") -> tuple[Codes, Floats]:
    """int8 codes and scale of each row: x [M, K] -> codes [M, K], scale [M].

    Raises ValueError naming the tensor when it holds a NaN or an infinity.
    """
    x = as_floats(x, 2, name)
    require_finite(x, name)
    codes = np.empty((x.shape[0], padded_depth(x.shape[1])), dtype=np.int8)
    scale = np.empty(x.shape[0], dtype=np.float32)
    _native.quantize_rows(x, codes, scale, isa)
    return codes[:, : x.shape[1]], scale


def rmsnorm_quantize_rows(
    x: npt.ArrayLike, weight: npt.ArrayLike, eps: float, *, name: str = "x", isa: str = ""
) -> tuple[Codes, Floats]:
    """int8 codes [M, K] and scale [M] of rmsnorm(x) * weight; raises as `quantize_rows`."""
    x, weight = as_floats(x, 2, name), as_floats(weight, 1, "weight")
    require_finite(x, name)
    codes = np.empty((x.shape[0], padded_depth(x.shape[1])), dtype=np.int8)
    scale = np.empty(x.shape[0], dtype=np.float32)
    _native.rmsnorm_quantize_rows(x, weight, eps, codes, scale, isa)
    return codes[:, : x.shape[1]], scale


def rmsnorm_rows(x: npt.ArrayLike, weight: npt.ArrayLike, eps: float, *, isa: str = "") -> Floats:
    """rmsnorm(x) * weight: x [M, K], weight [K] -> [M, K]."""
    x, weight = as_floats(x, 2, "x"), as_floats(weight, 1, "weight")
    out = np.empty_like(x)
    _native.rmsnorm_rows(x, weight, eps, out, isa)
    return out


def rmsnorm_add_rows(
    x: npt.ArrayLike, added: npt.ArrayLike, weight: npt.ArrayLike, eps: float, *, isa: str = ""
) -> Floats:
    """x + rmsnorm(added) * weight: x and added [M, K], weight [K] -> [M, K]."""
    out: Floats = as_floats(x, 2, "x").copy()
    _native.rmsnorm_add_rows(as_floats(added, 2, "added"), as_floats(weight, 1, "weight"), eps, out, isa)
    return out


def silu_mul(gate: npt.ArrayLike, up: npt.ArrayLike, *, isa: str = "") -> Floats:
    """silu(gate) * up, any shape."""
    return _gate_mul(gate, up, False, isa)


def gelu_mul(gate: npt.ArrayLike, up: npt.ArrayLike, *, isa: str = "") -> Floats:
    """gelu(gate) * up, any shape, GELU in its tanh form."""
    return _gate_mul(gate, up, True, isa)


def _gate_mul(gate: npt.ArrayLike, up: npt.ArrayLike, gelu: bool, isa: str) -> Floats:
    gate = np.ascontiguousarray(gate, dtype=np.float32)
    up = as_floats(up, gate.ndim, "up")
    if up.shape != gate.shape:
        raise ValueError(f"gate {gate.shape} and up {up.shape} must have one shape")
    out = np.empty(gate.size, dtype=np.float32)
    _native.gate_mul(gate.reshape(-1), up.reshape(-1), out, gelu, isa)
    return out.reshape(gate.shape)


def exp(x: npt.ArrayLike, *, isa: str = "") -> Floats:
    """exp(x), any shape, the same bits on every machine."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    out = np.empty(x.size, dtype=np.float32)
    _native.exp_array(x.reshape(-1), out, isa)
    return out.reshape(x.shape)


def rope_rotate(x: npt.ArrayLike, cos: npt.ArrayLike, sin: npt.ArrayLike, *, isa: str = "") -> Floats:
    """x [M, H, D] rotated by halves with cos, sin [M, D/2] -> [M, H, D]."""
    out: Floats = as_floats(x, 3, "x").copy()
    _native.rope_rotate(out, as_floats(cos, 2, "cos"), as_floats(sin, 2, "sin"), isa)
    return out
