"""What calibration does to queries and keys: scale balanced between them, and a vector that all keys share taken off.

Both leave the function as it is; `calibrate` says why they help.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels.gemm import gemm_f32
from duologue.kernels.rows import rmsnorm_rows
from duologue.models.calibration_step import THREADS, Quantized, map_pieces, products, turned_heads
from duologue.models.checkpoint import Weights
from duologue.models.pack import quantize_and_pack
from duologue.models.rewrite import as_float, balancing_scale, column_squares
from duologue.models.spec import LayerSpec, ModelSpec

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


def balance_queries_and_keys(
    spec: ModelSpec, weights: Weights, own: str, layer: LayerSpec, inputs: list[Quantized], gram: Floats
) -> None:
    """Scales rows of q and k in `weights` with their biases, or the weights of their norms, in place.

    `gram` [hidden, hidden] is that of the inputs.

    Not done where other layers read these keys: their queries would have to follow. Nor across a clamp.
    """
    heads, kv_heads, half = layer.heads, layer.kv_heads, layer.head_dim // 2
    # RoPE keeps the norm of a pair (channels c and c + half), so squares before it serve.
    if layer.qk_norm:
        q, k = (
            _normed_squares(spec, weights, own + name, layer.head_dim, inputs).reshape(2, half).sum(axis=0)
            for name in ("q", "k")
        )
        balance = np.tile(balancing_scale(k / kv_heads, q / heads), 2)  # [head_dim]
        weights[own + "q_norm"] = weights[own + "q_norm"] * balance
        weights[own + "k_norm"] = weights[own + "k_norm"] / balance
        return
    squares = [
        _biased_squares(weights, own + name, inputs)
        if layer.qkv_bias
        else _product_squares(weights[own + name], gram)
        for name in ("q", "k")
    ]
    q = squares[0].reshape(kv_heads, -1, 2, half).sum(axis=(1, 2))
    k = squares[1].reshape(kv_heads, 2, half).sum(axis=1)
    t = balancing_scale(k, q / (heads // kv_heads))[:, None, None, :]  # [kv_heads, 1, 1, half]
    k_factor = np.broadcast_to(np.float32(1.0) / t, (kv_heads, 1, 2, half)).reshape(-1)
    q_factor = np.broadcast_to(t, (kv_heads, heads // kv_heads, 2, half)).reshape(-1)
    for name, factor in (("q", q_factor), ("k", k_factor)):
        weights[own + name] = weights[own + name] * factor[:, None]
        if layer.qkv_bias:
            weights[f"{own}{name}_bias"] = weights[f"{own}{name}_bias"] * factor


def _normed_squares(
    spec: ModelSpec, weights: Weights, name: str, head_dim: int, inputs: list[Quantized]
) -> Doubles:
    """Sum of squares [head_dim] of all heads of one projection after their norm."""
    packed = quantize_and_pack(name, [weights[name]])
    norm = weights[name + "_norm"]
    of_pieces = map_pieces(
        lambda rows: column_squares(rmsnorm_rows(rows.reshape(-1, head_dim), norm, spec.norm_eps)),
        products(inputs, packed),
    )
    return np.asarray(np.add.reduce(of_pieces, axis=0))


def _biased_squares(weights: Weights, name: str, inputs: list[Quantized]) -> Doubles:
    """Sum of squares of each output of a projection with a bias."""
    packed = quantize_and_pack(name, [weights[name]], bias=weights[f"{name}_bias"])
    return np.asarray(np.add.reduce(map_pieces(column_squares, products(inputs, packed)), axis=0))


def _product_squares(w: Floats, gram: Floats) -> Doubles:
    """Sum of squares of each of the products of w [N, K] with the inputs of a Gram matrix: w G w^T, row by row."""
    # Columns first: numpy adds along the first axis in order.
    terms = (gemm_f32(w, gram, threads=THREADS) * w).T.astype(np.float64)
    return np.asarray(np.add.reduce(np.ascontiguousarray(terms), axis=0))


def keys_may_move(spec: ModelSpec, i: int) -> bool:
    """Whether all queries that read a layer's keys turn scores into weights by a softmax alone.

    Then a vector taken off every key takes the same off all scores of a query, which changes no weight. A cap or a sink's score
    would notice.
    """
    readers = [layer for j, layer in enumerate(spec.layers) if j == i or layer.kv_owner == i]
    return not any(layer.attention_softcap or layer.sinks for layer in readers)


def key_offset(spec: ModelSpec, weights: Weights, i: int, projected: list[Floats]) -> Floats:
    """Mean [kv_heads * head_dim] of a layer's keys after RoPE, the first token's left out: it is unlike all others.

    Channels that RoPE hardly turns are far from zero on every token, and the scale of a key is theirs.
    """
    layer = spec.layers[i]
    begin, columns = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    total, rows = np.zeros(columns), 0
    for qkv in projected:
        keys = np.ascontiguousarray(qkv[:, begin : begin + columns])
        turned = turned_heads(spec, weights, i, keys, "k_norm").reshape(len(keys), columns)[1:]
        total += np.add.reduce(turned.astype(np.float64), axis=0)
        rows += len(turned)
    return as_float(total / max(rows, 1))
