"""A model's forward pass in float32 with numpy and BLAS: what int8 is measured against.

It follows the spec (windows, shared KV) like the executor, but quantises nothing, and its sums are in
whatever order BLAS chooses, so it is compared within a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from duologue.models.checkpoint import Weights
from duologue.models.rope import rope_kinds, rope_tables
from duologue.models.spec import LayerSpec, ModelSpec

Floats = npt.NDArray[np.float32]
_QUERY_BLOCK = 256  # scores of one block of rows at a time: [heads, 256, keys]


def reference_logits(
    spec: ModelSpec, weights: Weights, token_ids: Sequence[int] | npt.NDArray[np.integer]
) -> Floats:
    """Logits [n, vocab] of n tokens that start at position 0. Raises ValueError for ids outside the
    vocabulary."""
    head = weights.get("head", weights["embedding"])
    logits: Floats = reference_hidden(spec, weights, token_ids) @ head.T
    return logits


def reference_hidden(
    spec: ModelSpec, weights: Weights, token_ids: Sequence[int] | npt.NDArray[np.integer]
) -> Floats:
    """What the head is applied to: the last layer's output after the final norm, [n, hidden]."""
    ids = np.asarray(token_ids, dtype=np.int64)
    if ids.ndim != 1 or ids.size == 0 or ids.min() < 0 or ids.max() >= spec.vocab_size:
        raise ValueError(f"token ids must be a non-empty list of ids below {spec.vocab_size}")
    tables = {kind: rope_tables(*kind, len(ids)) for kind in rope_kinds(spec)}
    x = weights["embedding"][ids]  # [n, hidden]
    stored: list[tuple[Floats, Floats]] = []
    for i, layer in enumerate(spec.layers):
        own = f"layers.{i}."
        cos, sin = tables[layer.rope_base, layer.head_dim]
        h = rmsnorm(x, weights[own + "attention_norm"], spec.norm_eps)
        q = rotate(_heads(h @ weights[own + "q"].T, layer.heads), cos, sin)
        if layer.kv_owner is None:
            k = rotate(_heads(h @ weights[own + "k"].T, layer.kv_heads), cos, sin)
            stored.append((k, _heads(h @ weights[own + "v"].T, layer.kv_heads)))
        else:
            stored.append(stored[layer.kv_owner])
        x = x + attend(q, *stored[i], layer) @ weights[own + "output"].T
        h = rmsnorm(x, weights[own + "mlp_norm"], spec.norm_eps)
        x = x + (silu(h @ weights[own + "gate"].T) * (h @ weights[own + "up"].T)) @ weights[own + "down"].T
    return rmsnorm(x, weights["final_norm"], spec.norm_eps)


def rmsnorm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x [n, hidden], weight [hidden]."""
    normed: Floats = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps)) * weight
    return normed


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), without overflow for large negative x."""
    gated: Floats = x * (np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5))
    return gated


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """RoPE by halves: x [heads, n, D]; cos, sin [n, D/2]."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def attend(q: Floats, k: Floats, v: Floats, layer: LayerSpec) -> Floats:
    """Causal attention, within the layer's window: q [heads, n, D], k and v [kv_heads, n, D] -> [n, heads *
    D]."""
    heads, n, dim = q.shape
    group = heads // layer.kv_heads
    out = np.empty((n, heads, dim), dtype=np.float32)
    positions = np.arange(n)
    for begin in range(0, n, _QUERY_BLOCK):
        rows = positions[begin : begin + _QUERY_BLOCK, None]  # [rows, 1]
        first = max(0, begin - layer.window + 1) if layer.window else 0
        keys = positions[first : begin + _QUERY_BLOCK][None, :]  # [1, keys]
        visible = keys <= rows
        if layer.window:
            visible &= keys > rows - layer.window
        span = slice(first, begin + _QUERY_BLOCK)
        for h in range(heads):
            scores = q[h, begin : begin + _QUERY_BLOCK] @ k[h // group, span].T / np.float32(np.sqrt(dim))
            scores = np.where(visible, scores, np.float32(-np.inf))
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            out[begin : begin + _QUERY_BLOCK, h] = scores @ v[h // group, span]
    return out.reshape(n, heads * dim)


def _heads(x: Floats, heads: int) -> Floats:
    by_head: Floats = x.reshape(len(x), heads, -1).swapaxes(0, 1)  # [n, heads * D] -> [heads, n, D]
    return by_head
