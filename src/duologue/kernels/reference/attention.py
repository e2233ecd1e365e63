"""Attention in numpy: the kernel's arithmetic bit for bit, and plain float attention to judge its error by.

Per row and key tile of PAGE_TOKENS keys, in base 2:

    s = (float(q . k) * (q_scale * log2 e)) * k_scale;  with a cap c, s = c' tanh(s / c') with c' = c log2 e
    m' = max(m, max s);  alpha = 2^(m - m');  p = 2^(s - m')
    sum = sum * alpha + sum of p (16 lanes over groups of 16 keys, then the fixed tree)
    w = p * v_scale;  codes = round(w * (127 / amax)) in 0..127, one amax per P_SCALE_TOKENS keys
    out = out * alpha + float(codes . V) * (amax / 127)

P . V is integer, so that prefill at long context is not bound by fp32; the price is P's rounding, half a code
of the largest weight in the tile. Splits of SPLIT_TOKENS keys start afresh and are merged in ascending order.
Keys that a row does not see take part in nothing. A sink is one more score, without a value, merged after all splits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels import PAGE_TOKENS, SPLIT_TOKENS
from duologue.kernels.attention import P_SCALE_TOKENS
from duologue.kernels.reference.rows import LANES, ZERO_AMAX, Codes, Floats, quantize_rows, reduce_add
from duologue.kernels.reference.rows import softcap as capped

LOG2_E = np.float32(1.44269504)
_EXP2_POLYNOMIAL = (1.3264727e-3, 9.671513e-3, 5.5507336e-2, 2.4022242e-1, 6.93147e-1, 1.0)


def exp2_nonpositive(x: Floats) -> Floats:
    """2^x for x <= 0 within 2e-7, exactly 1 at 0, no smaller than 2^-64."""
    x = np.maximum(np.asarray(x, dtype=np.float32), np.float32(-64.0))
    n = np.rint(x)
    f = x - n
    p = np.full_like(f, np.float32(_EXP2_POLYNOMIAL[0]))
    for coefficient in _EXP2_POLYNOMIAL[1:]:
        p = p * f + np.float32(coefficient)
    return np.asarray(np.ldexp(p, n.astype(np.int32)), dtype=np.float32)


def attend(
    q: Codes,
    q_scale: Floats,
    keys: Floats,
    values: Floats,
    *,
    group: int,
    first_position: int,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Floats | None = None,
) -> Floats:
    """q [rows, D] int8 over float keys and values [T, D] of one KV head, quantised here -> [rows, D].

    `sinks` [group] are the logits of the group's heads' sinks.
    """
    k_codes, k_scale = quantize_rows(keys)
    v_codes, v_scale = quantize_rows(values)
    out = np.empty(q.shape, dtype=np.float32)
    for row in range(q.shape[0]):
        position = first_position + row // group
        first = max(position - window + 1, 0) if window else 0
        total = _attend_row(
            q[row],
            q_scale[row] * LOG2_E,
            np.float32(softcap) * LOG2_E,
            k_codes,
            k_scale,
            v_codes,
            v_scale,
            range(first, position + 1),
        )
        if sinks is not None:
            nothing = np.zeros(q.shape[1], dtype=np.float32)
            total = _merge(total, (sinks[row % group] * LOG2_E, np.float32(1.0), nothing))
        out[row] = np.divide(total[2], total[1], dtype=np.float32)
    return out


def attend_float(
    q: Floats, keys: Floats, values: Floats, *, group: int, first_position: int, window: int = 0
) -> npt.NDArray[np.float64]:
    """Plain softmax attention in float64: q [rows, D] with the softmax scale included -> [rows, D]."""
    out = np.empty(q.shape, dtype=np.float64)
    for row in range(q.shape[0]):
        position = first_position + row // group
        seen = slice(max(position - window + 1, 0) if window else 0, position + 1)
        s = keys[seen].astype(np.float64) @ q[row].astype(np.float64)
        p = np.exp(s - s.max())
        out[row] = (p / p.sum()) @ values[seen].astype(np.float64)
    return out


def store_kv(
    pool: npt.NDArray[np.uint8],
    pages: npt.NDArray[np.int32],
    block_offset: int,
    first_position: int,
    keys: Floats,
    values: Floats,
) -> None:
    """Quantise keys and values [T, D] into `pool` [pages, page_bytes], in place.

    A block holds keys [tokens/16][D/4][16][4] (code + 128), values [tokens/4][D][4], then their fp32 scales.
    """
    dim = keys.shape[1]
    k_codes, k_scale = quantize_rows(keys)
    v_codes, v_scale = quantize_rows(values)
    for t in range(keys.shape[0]):
        page, slot = divmod(first_position + t, PAGE_TOKENS)
        block = pool[pages[page], block_offset : block_offset + 2 * PAGE_TOKENS * (dim + 4)]
        code_bytes = PAGE_TOKENS * dim
        key_bytes = block[:code_bytes].reshape(PAGE_TOKENS // 16, dim // 4, 16, 4)
        key_bytes[slot // 16, :, slot % 16, :] = (k_codes[t].astype(np.int32) + 128).reshape(dim // 4, 4)
        value_bytes = block[code_bytes : 2 * code_bytes].view(np.int8).reshape(PAGE_TOKENS // 4, dim, 4)
        value_bytes[slot // 4, :, slot % 4] = v_codes[t]
        scales = block[2 * code_bytes :].view(np.float32)
        scales[slot] = k_scale[t]
        scales[PAGE_TOKENS + slot] = v_scale[t]


State = tuple[np.float32, np.float32, Floats]  # maximum, sum, out [D]


def _attend_row(
    q: Codes,
    scale: np.float32,
    cap: np.float32,
    k_codes: Codes,
    k_scale: Floats,
    v_codes: Codes,
    v_scale: Floats,
    seen: range,
) -> State:
    total: State | None = None
    for begin in range(seen.start // SPLIT_TOKENS * SPLIT_TOKENS, seen.stop, SPLIT_TOKENS):
        state: State = (np.float32(-np.inf), np.float32(0.0), np.zeros(q.shape[0], dtype=np.float32))
        for tile in range(begin, begin + SPLIT_TOKENS, PAGE_TOKENS):
            keys = slice(max(tile, seen.start), min(tile + PAGE_TOKENS, seen.stop))
            if keys.start < keys.stop:
                dot = k_codes[keys].astype(np.int32) @ q.astype(np.int32)
                s = (dot.astype(np.float32) * scale) * k_scale[keys]
                if cap > 0:
                    s = capped(s, cap)
                state = _add_tile(state, s, v_codes[keys], v_scale[keys], keys.start - tile)
        total = state if total is None else _merge(total, state)
    assert total is not None
    return total


def _add_tile(state: State, s: Floats, v_codes: Codes, v_scale: Floats, offset: int) -> State:
    """Fold seen keys, the first at `offset` in its tile, into the state."""
    old_max, old_sum, out = state
    new_max = max(s.max(), old_max)
    alpha = exp2_nonpositive(old_max - new_max)
    p = np.zeros(PAGE_TOKENS, dtype=np.float32)
    p[offset : offset + len(s)] = exp2_nonpositive(s - new_max)
    lanes = np.zeros(LANES, dtype=np.float32)
    for group in p.reshape(-1, LANES):
        lanes = lanes + group
    w = np.zeros(PAGE_TOKENS, dtype=np.float32)
    w[offset : offset + len(s)] = p[offset : offset + len(s)] * v_scale
    values = np.zeros((PAGE_TOKENS, out.shape[0]), dtype=np.int32)
    values[offset : offset + len(s)] = v_codes
    out = out * alpha
    for part in range(0, PAGE_TOKENS, P_SCALE_TOKENS):
        weights = w[part : part + P_SCALE_TOKENS]
        amax = weights.max()
        zero = not amax >= ZERO_AMAX
        codes = np.rint(weights * (np.float32(0.0) if zero else np.float32(127.0) / amax)).astype(np.int32)
        acc = codes @ values[part : part + P_SCALE_TOKENS]
        out = out + acc.astype(np.float32) * (np.float32(1.0) if zero else amax / np.float32(127.0))
    return new_max, old_sum * alpha + reduce_add(lanes), out


def _merge(a: State, b: State) -> State:
    if b[0] == -np.inf:
        return a
    if a[0] == -np.inf:
        return b
    top = max(a[0], b[0])
    x, y = exp2_nonpositive(a[0] - top), exp2_nonpositive(b[0] - top)
    return top, a[1] * x + b[1] * y, a[2] * x + b[2] * y
