"""Matrix products: packed int8 weights times int8 activations, exact in int32; calibration's fp32 product.

Weights are packed once, [N/64][K/4][64][4] bytes, N and K padded by zeros, for all instruction sets and M.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from duologue.kernels import _native
from duologue.kernels.rows import Codes, Floats, as_floats, padded_depth

Ints = npt.NDArray[np.int32]

MAX_DEPTH: int = _native.MAX_DEPTH
"""Largest K: beyond it an int32 accumulator could overflow."""

PACK_COLUMNS: int = _native.PACK_COLUMNS
PACK_DEPTH: int = _native.PACK_DEPTH


class Epilogue(enum.IntEnum):
    """What happens to y = (acc * a_scale) * w_scale (+ bias)."""

    STORE = 0
    """out = y"""
    ADD = 1
    """out += y, the residual stream"""
    GATED_SILU = 2
    """out = silu(gate) * up, the weight being a gated pair"""
    GATED_GELU = 3
    """the same with GELU in its tanh form"""
    RELU2 = 4
    """out = max(y, 0)^2"""
    SOFTCAP = 5
    """out = limit * tanh(y / limit)"""

    @property
    def gated(self) -> bool:
        return self in (Epilogue.GATED_SILU, Epilogue.GATED_GELU)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """The weights of y = x W^T, W [N, K], packed; see `pack_weight`.

    `n` counts the rows of both halves of a gated pair. Arrays are padded to whole blocks of 64 columns.
    """

    codes: Codes  # [N/64, K/4, 64, 4]
    compensation: Ints  # [N rounded up to 64], 128 * the sum of each column's codes
    scale: Floats  # [N rounded up to 64]
    bias: Floats | None  # [N rounded up to 64]
    n: int
    k: int
    gated: bool = False

    @property
    def n_padded(self) -> int:
        return int(self.scale.shape[0])

    @property
    def n_out(self) -> int:
        """Columns of the result: half of `n` for a gated pair."""
        return self.n // 2 if self.gated else self.n

    @property
    def nbytes(self) -> int:
        bias = 0 if self.bias is None else self.bias.nbytes
        return self.codes.nbytes + self.compensation.nbytes + self.scale.nbytes + bias


def _as_codes(x: npt.ArrayLike, name: str) -> Codes:
    array = np.asarray(x)
    if array.dtype != np.int8 or array.ndim != 2:
        raise ValueError(f"{name} must be a matrix of int8 codes, not {array.ndim}-dimensional {array.dtype}")
    return array


def _aligned_bytes(count: int) -> npt.NDArray[np.uint8]:
    """Uninitialised bytes on a cache-line boundary: packed vectors never straddle two lines."""
    raw = np.empty(count + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count]


def pack_weight(
    codes: npt.ArrayLike, scale: npt.ArrayLike, bias: npt.ArrayLike | None = None, *, gated: bool = False
) -> PackedWeight:
    """Pack int8 codes [N, K] with one scale (and bias) per row.

    With `gated`, the first half of the rows is a gate and the second its up projection; they are interleaved
    in runs of 16 columns for the gated epilogues. Raises ValueError for K over `MAX_DEPTH`, a code of -128,
    an odd gated pair, a scale that is not finite, or shapes that do not fit.
    """
    codes = np.ascontiguousarray(_as_codes(codes, "codes"))
    scale = as_floats(scale, 1, "scale")
    if not np.isfinite(scale).all():
        raise ValueError("scale holds a NaN or an infinity")
    n, k = codes.shape
    n_padded, k_padded = -(-n // PACK_COLUMNS) * PACK_COLUMNS, padded_depth(k)
    shape = (n_padded // PACK_COLUMNS, k_padded // PACK_DEPTH, PACK_COLUMNS, PACK_DEPTH)
    packed = PackedWeight(
        codes=_aligned_bytes(n_padded * k_padded).view(np.int8).reshape(shape),
        compensation=_aligned_bytes(4 * n_padded).view(np.int32),
        scale=_aligned_bytes(4 * n_padded).view(np.float32),
        bias=None if bias is None else _aligned_bytes(4 * n_padded).view(np.float32),
        n=n,
        k=k,
        gated=gated,
    )
    source_bias = as_floats([] if bias is None else bias, 1, "bias")
    out_bias = np.empty(0, np.float32) if packed.bias is None else packed.bias
    _native.pack_weight(
        codes, scale, source_bias, gated, packed.codes, packed.compensation, packed.scale, out_bias
    )
    return packed


def _padded_activations(a: npt.ArrayLike, k: int) -> Codes:
    """Rows of codes as the kernels read them: contiguous, K rounded up to 4 with zeros; copied if need be."""
    codes = _as_codes(a, "a")
    if codes.shape[1] != k:
        raise ValueError(f"a has {codes.shape[1]} columns but the weight's K is {k}")
    depth = padded_depth(k)
    if depth == k:
        return np.ascontiguousarray(codes)
    padded = np.zeros((codes.shape[0], depth), dtype=np.int8)
    padded[:, :k] = codes
    return padded


def _ranges(
    m: int, packed: PackedWeight, rows: tuple[int, int] | None, columns: tuple[int, int] | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    return rows or (0, m), columns or (0, packed.n_padded)


def gemm_int8(
    a: npt.ArrayLike,
    a_scale: npt.ArrayLike,
    packed: PackedWeight,
    epilogue: Epilogue = Epilogue.STORE,
    *,
    out: Floats | None = None,
    rows: tuple[int, int] | None = None,
    columns: tuple[int, int] | None = None,
    limit: float = 0.0,
    isa: str = "",
) -> Floats:
    """a [M, K] int8 codes times packed weights -> fp32 [M, N] (N/2 for a gated pair), on the calling thread.

    y = (acc * a_scale[m]) * w_scale[n] (+ bias[n]), acc exact; `limit` > 0 then keeps it within [-limit, limit], but for
    `Epilogue.ADD`, which has none, and `Epilogue.SOFTCAP`, which needs one. `out` is written in place and returned; it is
    required for `Epilogue.ADD` and when only `rows` or packed `columns` (multiples of 16, of 32 for a gated
    pair) are computed; the rest of it stays as it was. Raises ValueError when dtypes, shapes or ranges do not
    fit.
    """
    codes = _padded_activations(a, packed.k)
    m = codes.shape[0]
    if Epilogue(epilogue).gated != packed.gated:
        raise ValueError("a gated epilogue goes with a weight packed as a gated pair, and only with one")
    if limit < 0 or (limit > 0 and epilogue == Epilogue.ADD) or (limit == 0 and epilogue == Epilogue.SOFTCAP):
        raise ValueError(f"limit {limit} does not go with {Epilogue(epilogue).name}")
    if out is None:
        if epilogue == Epilogue.ADD or rows is not None or columns is not None:
            raise ValueError("out is required with Epilogue.ADD and with ranges of rows or columns")
        out = np.empty((m, packed.n_out), dtype=np.float32)
    row_range, column_range = _ranges(m, packed, rows, columns)
    scale = as_floats(a_scale, 1, "a_scale")
    if out.dtype != np.float32 or out.shape != (m, packed.n_out) or not out.flags.c_contiguous:
        raise ValueError(f"out must be a C-contiguous float32 array of shape {(m, packed.n_out)}")
    _native.gemm_int8(codes, scale, packed, int(epilogue), out, row_range, column_range, limit, isa)
    return out


def gemm_int8_accumulators(
    a: npt.ArrayLike,
    packed: PackedWeight,
    *,
    out: Ints | None = None,
    rows: tuple[int, int] | None = None,
    columns: tuple[int, int] | None = None,
    isa: str = "",
) -> Ints:
    """Exact int32 accumulators of a [M, K] times packed weights -> [M, N rounded up to 64], in packed order.

    `out`, `rows` and `columns` as in `gemm_int8`.
    """
    codes = _padded_activations(a, packed.k)
    m = codes.shape[0]
    if out is None:
        if rows is not None or columns is not None:
            raise ValueError("out is required with ranges of rows or columns")
        out = np.empty((m, packed.n_padded), dtype=np.int32)
    if out.dtype != np.int32 or out.shape != (m, packed.n_padded) or not out.flags.c_contiguous:
        raise ValueError(f"out must be a C-contiguous int32 array of shape {(m, packed.n_padded)}")
    row_range, column_range = _ranges(m, packed, rows, columns)
    _native.gemm_int8_accumulators(codes, packed, out, row_range, column_range, isa)
    return out


def _row_parts(m: int, parts: int) -> Sequence[tuple[int, int]]:
    edges = [m * part // parts for part in range(parts + 1)]
    return [(begin, end) for begin, end in pairwise(edges) if begin < end]


def gemm_f32(a: npt.ArrayLike, w: npt.ArrayLike, *, threads: int = 1, isa: str = "") -> Floats:
    """a [M, K] times w [N, K] transposed -> fp32 [M, N], for calibration.

    Every output is summed in ascending k, each product rounded before it is added, so that results depend
    neither on blocking nor on `threads` nor on the instruction set.
    """
    a, w = as_floats(a, 2, "a"), as_floats(w, 2, "w")
    if a.shape[1] != w.shape[1]:
        raise ValueError(f"a has {a.shape[1]} columns but w has {w.shape[1]}")
    if threads < 1:
        raise ValueError("threads must be at least 1")
    out = np.empty((a.shape[0], w.shape[0]), dtype=np.float32)
    parts = _row_parts(a.shape[0], threads)
    if len(parts) == 1:
        _native.gemm_f32(a, w, out, parts[0], isa)
    elif parts:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(lambda part: _native.gemm_f32(a, w, out, part, isa), parts))
    return out
