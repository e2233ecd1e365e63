"""Rewrites float weights so that int8 loses little, at no cost per token.

Three exact rewrites of the same function:

1. **Rotation.** The residual stream is rotated (see `rotation`), and each head's values too. Norm weights go into the maps that
   follow them and become 1; the head gets the final norm's and so is no longer the embedding's twin.
2. **Moved scale** at the input of the down projection, which no rotation reaches without work per token: channel j is divided
   by s_j in the rows of the up projection and multiplied back in the columns of the down projection.
3. **Balanced queries and keys**: in every pair of channels that RoPE turns together, queries are multiplied and keys divided by
   one factor, so that neither has channels far above the rest.

In 2 and 3 the factor is sqrt(a_j / w_j), with a_j and w_j the sizes of the two sides of the product: what minimises the
product of their norms (Cauchy-Schwarz), and with it the rounding error, while a row's amax stays in proportion to its norm.
This is SmoothQuant's rule (Xiao et al., 2022, arXiv 2211.10438) with means in place of maxima: root mean squares, and for a_j in
2 the fourth root of mean fourth powers. Maxima are misled by the first token, on which a channel of one layer is 300 times
larger than any other: they move so much scale into that channel's weights that all other weights of the row lose their digits.
Tokens count relative to the norm of what their product is added to for the same reason.

Then every map's weights, but the embedding's, are put on their int8 grid so that each makes up for the rounding errors of
others: see `compensate`.

The activations are those of the quantised model itself: layer by layer, by the int8 kernels, whose results do not depend on the
machine. What else was tried, and what it gave, is in docs/log.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from duologue.kernels import PAGE_TOKENS
from duologue.kernels.attention import attend, kv_block_bytes, store_kv
from duologue.kernels.gemm import Epilogue, PackedWeight, gemm_f32, gemm_int8
from duologue.kernels.rows import Codes, quantize_rows, rmsnorm_quantize_rows, rmsnorm_rows, rope_rotate
from duologue.models.checkpoint import Weights
from duologue.models.compensate import compensation, gram_matrix, round_compensated
from duologue.models.pack import quantize_and_pack
from duologue.models.rope import rope_tables
from duologue.models.rotation import rotate, rotate_rows
from duologue.models.spec import LayerSpec, ModelSpec

WINDOW_TOKENS = 1024
"""The calibration text is read in pieces of this length, each from position 0."""

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Quantized = tuple[Codes, Floats]
T = TypeVar("T")
_SMALLEST_SQUARE = 1e-10
_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_FIRST_TOKEN_WEIGHT = np.float32(4.0)
_TRANSPOSED_CHANNELS = 64
_DOWN_STEP = 4  # every fourth token tells the down projection's scale


def calibrate(
    spec: ModelSpec,
    weights: Weights,
    token_ids: npt.NDArray[np.int32],
    *,
    rounded: bool = True,
    on_layer: Callable[[int], None] = lambda count: None,
) -> Weights:
    """Weights of the same function that quantise well; `weights` itself is not changed.

    `token_ids` [n] is the calibration text. `rounded` puts the weights on their int8 grid; without it the rewrites alone are
    done. `on_layer` is told how many layers are done. Returns every canonical weight, and always a `head`. Equal input gives
    equal bits on every machine, whatever its threads. Raises ValueError naming the tensor when an activation or a weight is not
    finite.
    """
    rotated = rotate_model(spec, weights)
    pieces = [token_ids[i : i + WINDOW_TOKENS] for i in range(0, len(token_ids), WINDOW_TOKENS)]
    streams = [_embedded(rotated["embedding"], piece, spec.context_tokens) for piece in pieces]
    caches: list[dict[int, npt.NDArray[np.uint8]]] = [{} for _ in streams]
    for i, layer in enumerate(spec.layers):
        _calibrate_layer(spec, rotated, i, layer, streams, caches, rounded)
        on_layer(i + 1)
    if rounded:
        _compensate(rotated, ["head"], _gram(_normed(spec, rotated["final_norm"], streams, "head")))
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
    rounded: bool,
) -> None:
    """Rewrites the layer in `weights` and advances every stream [n, hidden] through it, in place."""
    own = f"layers.{i}."
    qkv = [own + name for name in ("q", "k", "v") if own + name in weights]
    gate_up = [own + "gate", own + "up"]

    inputs = _normed(spec, weights[own + "attention_norm"], streams, own + "qkv")
    gram = _gram(inputs)
    if layer.kv_owner is None and not any(other.kv_owner == i for other in spec.layers):
        _balance_queries_and_keys(weights, own, layer, gram)
    if rounded:
        _compensate(weights, qkv, gram)
    projected = _products(inputs, quantize_and_pack(own + "qkv", [weights[name] for name in qkv]))
    attended = _map(lambda columns, cache: _attention(i, layer, columns, cache), projected, caches)

    inputs = _map(lambda x: quantize_rows(x, name=own + "output"), attended)
    if rounded:
        _compensate(weights, [own + "output"], _gram(inputs))
    _add_products(streams, inputs, quantize_and_pack(own + "output", [weights[own + "output"]]))

    inputs = _normed(spec, weights[own + "mlp_norm"], streams, own + "gate_up")
    if rounded:
        _compensate(weights, gate_up, _gram(inputs))
    packed = quantize_and_pack(own + "gate_up", [weights[name] for name in gate_up], gated=True)
    hidden = _products(inputs, packed, Epilogue.GATED_SILU)

    s = _down_scale(hidden, streams, weights[own + "down"])
    weights[own + "up"] = weights[own + "up"] / s[:, None]
    weights[own + "down"] = weights[own + "down"] * s
    inputs = _map(lambda h: quantize_rows(h / s, name=own + "down"), hidden)
    if rounded:
        _compensate(weights, [own + "down"], _gram(inputs))
    _add_products(streams, inputs, quantize_and_pack(own + "down", [weights[own + "down"]]))


def _down_scale(hidden: list[Floats], streams: list[Floats], down: Floats) -> Floats:
    """What to divide each input of the down projection by, from inputs [n, K], the residual stream [n, N] before, and weights.

    Inputs count relative to the stream that their product leads to, and large ones count more: fourth powers. The first token
    is why: its stream grows to many times the others' and shrinks again where one input cancels it, and what that input's
    scale leaves of the others is all that remains.
    """
    rows = np.concatenate([h[::_DOWN_STEP] for h in hidden])
    after = np.concatenate([x[::_DOWN_STEP] for x in streams]) + gemm_f32(rows, down, threads=_THREADS)
    token_squares = _column_squares(np.ascontiguousarray(after.T))  # [n]
    relative = rows.astype(np.float64) / np.sqrt(np.maximum(token_squares, _SMALLEST_SQUARE))[:, None]
    fourth_powers = np.add.reduce(np.square(np.square(relative)), axis=0) / len(rows)
    return balancing_scale(np.sqrt(fourth_powers), _column_squares(down))


def _column_squares(x: Floats) -> Doubles:
    """Sum of squares of each column; numpy adds rows in order."""
    return np.asarray(np.add.reduce(np.square(x.astype(np.float64)), axis=0))


def _balance_queries_and_keys(weights: Weights, own: str, layer: LayerSpec, gram: Floats) -> None:
    """Scales rows of q and k in `weights`, in place; `gram` [hidden, hidden] is that of their inputs.

    Not done where other layers read these keys: their queries would have to follow.
    """
    heads, kv_heads, half = layer.heads, layer.kv_heads, layer.head_dim // 2
    # RoPE keeps the norm of a pair (channels c and c + half), so squares before it serve.
    q = _product_squares(weights[own + "q"], gram).reshape(kv_heads, -1, 2, half).sum(axis=(1, 2))
    k = _product_squares(weights[own + "k"], gram).reshape(kv_heads, 2, half).sum(axis=1)
    t = balancing_scale(k, q / (heads // kv_heads))[:, None, None, :]  # [kv_heads, 1, 1, half]
    k_factor = np.broadcast_to(np.float32(1.0) / t, (kv_heads, 1, 2, half)).reshape(-1)
    q_factor = np.broadcast_to(t, (kv_heads, heads // kv_heads, 2, half)).reshape(-1)
    weights[own + "q"] = weights[own + "q"] * q_factor[:, None]
    weights[own + "k"] = weights[own + "k"] * k_factor[:, None]


def _product_squares(w: Floats, gram: Floats) -> Doubles:
    """Sum of squares of each of the products of w [N, K] with the inputs of a Gram matrix: w G w^T, row by row."""
    # Columns first: numpy adds along the first axis in order.
    terms = (gemm_f32(w, gram, threads=_THREADS) * w).T.astype(np.float64)
    return np.asarray(np.add.reduce(np.ascontiguousarray(terms), axis=0))


def _attention(i: int, layer: LayerSpec, qkv: Floats, cache: dict[int, npt.NDArray[np.uint8]]) -> Floats:
    """Attention of one piece from position 0: qkv [n, columns] -> [n, heads * head_dim]. `cache` holds owners' pages."""
    n, heads, kv_heads, dim = len(qkv), layer.heads, layer.kv_heads, layer.head_dim
    group = heads // kv_heads
    cos, sin = rope_tables(layer.rope_base, dim, n, layer.rope_factor)
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


def _normed(spec: ModelSpec, norm: Floats, streams: list[Floats], name: str) -> list[Quantized]:
    return _map(lambda x: rmsnorm_quantize_rows(x, norm, spec.norm_eps, name=name), streams)


def _products(
    inputs: list[Quantized], packed: PackedWeight, epilogue: Epilogue = Epilogue.STORE
) -> list[Floats]:
    return _map(lambda x: gemm_int8(x[0], x[1], packed, epilogue), inputs)


def _add_products(streams: list[Floats], inputs: list[Quantized], packed: PackedWeight) -> None:
    _map(lambda x, stream: gemm_int8(x[0], x[1], packed, Epilogue.ADD, out=stream), inputs, streams)


def _gram(inputs: list[Quantized]) -> Floats:
    """Gram matrix [K, K] of the quantised inputs, every row brought to one norm: its scale says nothing about its errors.

    The first token of a piece counts more, since all others attend to it.
    """
    depth = inputs[0][0].shape[1]
    unit = np.ones(depth, dtype=np.float32)
    channels = np.empty((depth, sum(len(codes) for codes, _ in inputs)), dtype=np.float32)
    begin = 0
    for codes, _ in inputs:
        rows = rmsnorm_rows(codes.astype(np.float32), unit, _SMALLEST_SQUARE)
        rows[0] *= _FIRST_TOKEN_WEIGHT
        # Some channels at a time: a transpose of the whole goes through memory once for each of them.
        for c in range(0, depth, _TRANSPOSED_CHANNELS):
            channels[c : c + _TRANSPOSED_CHANNELS, begin : begin + len(rows)] = rows[
                :, c : c + _TRANSPOSED_CHANNELS
            ].T
        begin += len(rows)
    return gram_matrix(channels, threads=_THREADS)


def _compensate(weights: Weights, names: list[str], gram: Floats) -> None:
    """Puts weights of one input on their int8 grid, in place; `quantize_rows` gives back the very codes."""
    by = compensation(gram, threads=_THREADS)
    for name in names:
        weights[name] = round_compensated(weights[name], by, threads=_THREADS)


def _map(function: Callable[..., T], *pieces: Iterable[Any]) -> list[T]:
    """`function` of each piece, several at a time: kernels run without Python's lock."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, *pieces))


def _embedded(embedding: Floats, token_ids: npt.NDArray[np.int32], context_tokens: int) -> Floats:
    """The residual stream [n, hidden] as the executor begins it: from int8 rows."""
    codes, scale = quantize_rows(embedding[token_ids[:context_tokens]], name="embedding")
    return codes.astype(np.float32) * scale[:, None]


def _float(x: npt.NDArray[np.float64]) -> Floats:
    return np.ascontiguousarray(x, dtype=np.float32)
