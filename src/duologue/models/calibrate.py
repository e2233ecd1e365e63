"""Rewrites float weights so that int8 loses little, at no cost per token.

Three exact rewrites of the same function:

1. **Rotation.** The residual stream is rotated (see `rotation`), and each head's values too. Norm weights go into the maps that
   follow them and become 1; the head gets the final norm's and so is no longer the embedding's twin.
2. **Moved scale** at the input of the down projection, which no rotation reaches without work per token: channel j is divided
   by s_j in the rows of the up projection and multiplied back in the columns of the down projection.
3. **Balanced queries and keys**: in every pair of channels that RoPE turns together, queries are multiplied and keys divided by
   one factor, so that neither has channels far above the rest.

In 2 and 3 the factor is sqrt(a_j / w_j), with a_j and w_j the root mean squares of the two sides of the product: what
minimises the product of their norms (Cauchy-Schwarz), and with it the rounding error, while a row's amax stays in proportion
to its norm. This is SmoothQuant's rule (Xiao et al., 2022, arXiv 2211.10438) with root mean squares in place of maxima.
Maxima are misled by the first token, on which a channel of one layer is 300 times larger than any other: they move so much
scale into that channel's weights that all other weights of the row lose their digits. Every token is brought to unit root
mean square first for the same reason.

The activations are those of the quantised model itself: layer by layer, by the int8 kernels, whose results do not depend on the
machine. What else was tried, and what it gave, is in docs/log.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels import PAGE_TOKENS
from duologue.kernels.attention import attend, kv_block_bytes, store_kv
from duologue.kernels.gemm import Epilogue, gemm_int8
from duologue.kernels.rows import quantize_rows, rmsnorm_quantize_rows, rmsnorm_rows, rope_rotate
from duologue.models.checkpoint import Weights
from duologue.models.pack import quantize_and_pack
from duologue.models.rope import rope_tables
from duologue.models.rotation import rotate, rotate_rows
from duologue.models.spec import LayerSpec, ModelSpec

WINDOW_TOKENS = 1024
"""The calibration text is read in pieces of this length, each from position 0."""

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
_SMALLEST_SQUARE = 1e-10


def calibrate(spec: ModelSpec, weights: Weights, token_ids: npt.NDArray[np.int32]) -> Weights:
    """Weights of the same function that quantise well; `weights` itself is not changed.

    `token_ids` [n] is the calibration text. Returns every canonical weight, and always a `head`. Equal input gives equal bits
    on every machine. Raises ValueError naming the tensor when an activation is not finite.
    """
    rotated = rotate_model(spec, weights)
    pieces = [token_ids[i : i + WINDOW_TOKENS] for i in range(0, len(token_ids), WINDOW_TOKENS)]
    streams = [_embedded(rotated["embedding"], piece, spec.context_tokens) for piece in pieces]
    caches: list[dict[int, npt.NDArray[np.uint8]]] = [{} for _ in streams]
    for i, layer in enumerate(spec.layers):
        _calibrate_layer(spec, rotated, i, layer, streams, caches)
    return rotated


def rotate_model(spec: ModelSpec, weights: Weights) -> Weights:
    """The same function in a rotated residual stream, norms folded, each head's values rotated."""
    out: Weights = {}
    head = weights["embedding"] if spec.tied_head else weights["head"]
    out["embedding"] = _float(rotate(weights["embedding"]))
    out["head"] = _float(rotate(head * weights["final_norm"].astype(np.float64)))
    out["final_norm"] = np.ones(spec.hidden_size, dtype=np.float32)
    for i, layer in enumerate(spec.layers):
        own = f"layers.{i}."
        for norm, names in (("attention_norm", ("q", "k", "v")), ("mlp_norm", ("gate", "up"))):
            scale = weights[own + norm].astype(np.float64)
            for name in names:
                if own + name in weights:  # a layer that shares KV has no k and v
                    out[own + name] = _float(rotate(weights[own + name] * scale))
            out[own + norm] = np.ones(spec.hidden_size, dtype=np.float32)
        if layer.kv_owner is None:
            # Values rotated within each head by the same matrix that the output projection undoes.
            heads = out[own + "v"].reshape(layer.kv_heads, layer.head_dim, -1)
            out[own + "v"] = _float(np.stack([rotate_rows(head) for head in heads])).reshape(
                out[own + "v"].shape
            )
        output = rotate_rows(weights[own + "output"]).reshape(spec.hidden_size, layer.heads, layer.head_dim)
        out[own + "output"] = _float(rotate(output)).reshape(spec.hidden_size, -1)
        out[own + "down"] = _float(rotate_rows(weights[own + "down"]))
    return out


def balancing_scale(squares: Doubles, other_squares: Doubles) -> Floats:
    """sqrt(rms / other rms) of each channel, from mean squares [K]: divide the first side by it and multiply the other.

    A common factor of all channels would change no code, so there is none. Square roots are exact on every machine.
    """
    ratio = np.maximum(squares, _SMALLEST_SQUARE) / np.maximum(other_squares, _SMALLEST_SQUARE)
    return _float(np.sqrt(np.sqrt(ratio)))


def _calibrate_layer(
    spec: ModelSpec,
    weights: Weights,
    i: int,
    layer: LayerSpec,
    streams: list[Floats],
    caches: list[dict[int, npt.NDArray[np.uint8]]],
) -> None:
    """Moves the layer's scale in `weights` and advances every stream [n, hidden] through it, in place."""
    own = f"layers.{i}."
    norms = weights[own + "attention_norm"], weights[own + "mlp_norm"]
    qkv = quantize_and_pack(
        own + "qkv", [weights[own + name] for name in ("q", "k", "v") if own + name in weights]
    )
    output = quantize_and_pack(own + "output", [weights[own + "output"]])
    gate_up = quantize_and_pack(own + "gate_up", [weights[own + "gate"], weights[own + "up"]], gated=True)
    projected = [
        gemm_int8(*rmsnorm_quantize_rows(x, norms[0], spec.norm_eps, name=own + "qkv"), qkv) for x in streams
    ]
    if layer.kv_owner is None and not any(other.kv_owner == i for other in spec.layers):
        _balance_queries_and_keys(weights, own, layer, projected)
    hidden = []
    for x, cache, columns in zip(streams, caches, projected, strict=True):
        attended = _attention(i, layer, columns, cache)
        codes, scale = quantize_rows(attended, name=own + "output")
        gemm_int8(codes, scale, output, Epilogue.ADD, out=x)
        codes, scale = rmsnorm_quantize_rows(x, norms[1], spec.norm_eps, name=own + "gate_up")
        hidden.append(gemm_int8(codes, scale, gate_up, Epilogue.GATED_SILU))
    unit = np.ones(layer.mlp_size, dtype=np.float32)
    squares = sum(
        (_column_squares(rmsnorm_rows(h, unit, _SMALLEST_SQUARE)) for h in hidden), np.zeros(layer.mlp_size)
    )
    down_weights = weights[own + "down"]
    s = balancing_scale(
        squares / sum(len(h) for h in hidden), _column_squares(down_weights) / spec.hidden_size
    )
    weights[own + "up"] = weights[own + "up"] / s[:, None]
    weights[own + "down"] = down_weights * s
    down = quantize_and_pack(own + "down", [weights[own + "down"]])
    for x, h in zip(streams, hidden, strict=True):
        codes, scale = quantize_rows(h / s, name=own + "down")
        gemm_int8(codes, scale, down, Epilogue.ADD, out=x)


def _balance_queries_and_keys(weights: Weights, own: str, layer: LayerSpec, projected: list[Floats]) -> None:
    """Scales rows of q and k in `weights`, and their columns in `projected` [n, q + k + v], in place.

    Codes of weights do not change, since each row has a scale of its own. Not done where other layers read these keys: their
    queries would have to follow.
    """
    heads, kv_heads, half = layer.heads, layer.kv_heads, layer.head_dim // 2
    q_end, k_end = heads * layer.head_dim, (heads + kv_heads) * layer.head_dim
    squares = sum((_column_squares(columns) for columns in projected), np.zeros(projected[0].shape[1]))
    # RoPE keeps the norm of a pair (channels c and c + half), so squares before it serve.
    q = squares[:q_end].reshape(kv_heads, -1, 2, half).sum(axis=(1, 2)) / (heads // kv_heads)
    k = squares[q_end:k_end].reshape(kv_heads, 2, half).sum(axis=1)
    t = balancing_scale(k, q)[:, None, None, :]  # [kv_heads, 1, 1, half]
    k_factor = np.broadcast_to(np.float32(1.0) / t, (kv_heads, 1, 2, half)).reshape(-1)
    q_factor = np.broadcast_to(t, (kv_heads, heads // kv_heads, 2, half)).reshape(-1)
    weights[own + "q"] = weights[own + "q"] * q_factor[:, None]
    weights[own + "k"] = weights[own + "k"] * k_factor[:, None]
    for columns in projected:
        columns[:, :q_end] *= q_factor
        columns[:, q_end:k_end] *= k_factor


def _attention(i: int, layer: LayerSpec, qkv: Floats, cache: dict[int, npt.NDArray[np.uint8]]) -> Floats:
    """Attention of one piece from position 0: qkv [n, columns] -> [n, heads * head_dim]. `cache` holds owners' pages."""
    n, heads, kv_heads, dim = len(qkv), layer.heads, layer.kv_heads, layer.head_dim
    group = heads // kv_heads
    cos, sin = rope_tables(layer.rope_base, dim, n)
    q = rope_rotate(qkv[:, : heads * dim].reshape(n, heads, dim), cos, sin)
    pages = np.arange(-(-n // PAGE_TOKENS), dtype=np.int32)
    block = kv_block_bytes(dim)
    if layer.kv_owner is None:
        k, v = np.split(qkv[:, heads * dim :], 2, axis=1)
        k, v = rope_rotate(k.reshape(n, kv_heads, dim), cos, sin), v.reshape(n, kv_heads, dim)
        cache[i] = np.zeros((len(pages), kv_heads * block), dtype=np.uint8)
        for h in range(kv_heads):
            store_kv(cache[i], pages, h * block, 0, k[:, h], v[:, h])
    pool = cache[i if layer.kv_owner is None else layer.kv_owner]
    # [n, kv_heads, group, dim] -> [kv_heads, n * group, dim]
    rows = q.reshape(n, kv_heads, group, dim).transpose(1, 0, 2, 3).reshape(kv_heads * n * group, dim)
    codes, scale = quantize_rows(rows, name=f"layers.{i}.q")
    out = attend(
        pool,
        pages,
        [h * block for h in range(kv_heads)],
        codes.reshape(kv_heads, n * group, dim),
        (scale * np.float32(dim**-0.5)).reshape(kv_heads, n * group),
        group=group,
        first_position=0,
        window=layer.window,
    )
    return np.ascontiguousarray(out.reshape(kv_heads, n, group, dim).transpose(1, 0, 2, 3)).reshape(
        n, heads * dim
    )


def _column_squares(x: Floats) -> Doubles:
    """Sum of squares of each column; numpy adds rows in order."""
    wide = x.astype(np.float64)
    return np.asarray(np.add.reduce(wide * wide, axis=0))


def _embedded(embedding: Floats, token_ids: npt.NDArray[np.int32], context_tokens: int) -> Floats:
    """The residual stream [n, hidden] as the executor begins it: from int8 rows."""
    codes, scale = quantize_rows(embedding[token_ids[:context_tokens]], name="embedding")
    return codes.astype(np.float32) * scale[:, None]


def _float(x: npt.NDArray[np.float64]) -> Floats:
    return np.ascontiguousarray(x, dtype=np.float32)
