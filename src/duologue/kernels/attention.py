"""int8 paged attention and the KV stores that feed it. See `reference.attention` for the arithmetic.

The functions here run one sequence over a numpy page pool [pages, page_bytes], for tests and benchmarks; the
engine's executor calls the same kernels on its own pool. Inside a page, every pair of owner layer and KV head
has a block at a byte offset of its own (`kv_block_bytes` long): keys, values, key scales and value scales of
`PAGE_TOKENS` positions.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels import _native
from duologue.kernels.rows import Codes, Floats, as_floats, require_finite

Pool = npt.NDArray[np.uint8]

P_SCALE_TOKENS: int = _native.P_SCALE_TOKENS
"""Keys whose softmax weights share one scale when they are quantised to codes 0..127."""

DEFAULT_ROW_BLOCK = 192
"""Rows per kernel call: enough to spread the cost of expanding a key tile, few enough to stay in cache."""


def kv_block_bytes(head_dim: int) -> int:
    """Bytes of one owner layer's and KV head's part of a page."""
    return int(_native.kv_block_bytes(head_dim))


def store_kv(
    pool: Pool,
    pages: npt.ArrayLike,
    block_offset: int,
    first_position: int,
    keys: npt.ArrayLike,
    values: npt.ArrayLike,
    *,
    isa: str = "",
) -> None:
    """Quantise keys and values [T, D] of one KV head into `pool`, in place.

    They take positions first_position .. first_position + T - 1 of the sequence whose page ids are `pages`.

    Raises ValueError when shapes, page ids or the block's place do not fit, or a value is not finite.
    """
    keys, values = as_floats(keys, 2, "keys"), as_floats(values, 2, "values")
    require_finite(keys, "keys")
    require_finite(values, "values")
    _native.kv_store(pool, _page_ids(pages), block_offset, first_position, keys, values, isa)


def attend(
    pool: Pool,
    pages: npt.ArrayLike,
    block_offsets: npt.ArrayLike,
    q: npt.ArrayLike,
    q_scale: npt.ArrayLike,
    *,
    group: int,
    first_position: int,
    window: int = 0,
    softcap: float = 0.0,
    sinks: npt.ArrayLike | None = None,
    row_block: int | None = None,
    isa: str = "",
    out: Floats | None = None,
) -> Floats:
    """softmax(q . K) . V of one sequence, for B KV heads at once: q [B, rows, D] int8 -> out [B, rows, D].

    Row r belongs to the token at position first_position + r // group; it sees the keys up to its own
    position, or the last `window` of them. A `softcap` c > 0 makes scores c * tanh(score / c); `sinks`
    [B, group] are logits that only add to the softmax's denominator. `q_scale` [B, rows] includes the
    softmax scale; `block_offsets` [B] are the heads' places in a page. The result does not depend on
    `row_block`, the rows given to one kernel call. Releases the GIL.

    Raises ValueError when shapes, page ids or block places do not fit.
    """
    codes: Codes = np.ascontiguousarray(q, dtype=np.int8)
    if codes.ndim != 3:
        raise ValueError(f"q must have 3 dimensions, not {codes.ndim}")
    if row_block is None:
        row_block = max(DEFAULT_ROW_BLOCK // group, 1) * group
    if out is None:
        out = np.empty(codes.shape, dtype=np.float32)
    offsets = np.ascontiguousarray(block_offsets, dtype=np.int64)
    scale = as_floats(q_scale, 2, "q_scale")
    sink_logits = as_floats(np.empty((0, 0)) if sinks is None else sinks, 2, "sinks")
    _native.attention(
        pool, _page_ids(pages), offsets, codes, scale, group, first_position, window, softcap, sink_logits,
        row_block, out, isa,
    )  # fmt: skip
    return out


def _page_ids(pages: npt.ArrayLike) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(pages, dtype=np.int32)
