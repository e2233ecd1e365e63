"""A model's forward pass in float32 with numpy and BLAS: what int8 is measured against.

It follows every field of the spec like the executor, but quantises nothing, and its sums are in whatever order BLAS chooses, so it
is compared within a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from duologue.models.checkpoint import Weights
from duologue.models.rope import rope_kind, rope_kinds
from duologue.models.spec import LayerSpec, Mlp, ModelSpec

Floats = npt.NDArray[np.float32]
_QUERY_BLOCK = 256  # scores of one block of rows at a time: [heads, 256, keys]


def reference_logits(
    spec: ModelSpec, weights: Mapping[str, Floats], token_ids: Sequence[int] | npt.NDArray[np.integer]
) -> Floats:
    """Logits [n, vocab] of n tokens that start at position 0. Raises ValueError for ids outside the
    vocabulary."""
    return head_logits(spec, weights, reference_hidden(spec, weights, token_ids))


def reference_hidden(
    spec: ModelSpec, weights: Mapping[str, Floats], token_ids: Sequence[int] | npt.NDArray[np.integer]
) -> Floats:
    """What the head is applied to: the last layer's output after the final norm, [n, hidden]."""
    ids = np.asarray(token_ids, dtype=np.int64)
    if ids.ndim != 1 or ids.size == 0 or ids.min() < 0 or ids.max() >= spec.vocab_size:
        raise ValueError(f"token ids must be a non-empty list of ids below {spec.vocab_size}")
    tables = {kind: kind.tables(len(ids)) for kind in rope_kinds(spec)}
    eps = spec.norm_eps
    x: Floats = weights["embedding"][ids] * np.float32(spec.embedding_scale)  # [n, hidden]
    x = x * weights.get("embedding_channels", np.float32(1.0))
    stored: list[tuple[Floats, Floats]] = []  # k and v of each layer, [kv_heads, n, D]
    for i, layer in enumerate(spec.layers):
        own = _layer_weights(weights, i)
        turns = tables[rope_kind(layer)]
        h = rmsnorm(x, own["attention_norm"], eps)
        q = _projected(h, own, "q", layer)
        if layer.kv_owner is None:
            k, v = (_projected(h, own, name, layer) for name in ("k", "v"))
            stored.append((rotate(rmsnorm(k, own["k_norm"], eps) if layer.qk_norm else k, *turns), v))
        else:
            stored.append(stored[layer.kv_owner])
        q = rotate(rmsnorm(q, own["q_norm"], eps) if layer.qk_norm else q, *turns)
        added = attend(q, *stored[i], layer, own["sinks"] if layer.sinks else None) @ own["output"].T
        x = x + (rmsnorm(added, own["attention_post_norm"], eps) if layer.post_norms else added)
        added = mlp(rmsnorm(x, own["mlp_norm"], eps), own, layer)
        x = x + (rmsnorm(added, own["mlp_post_norm"], eps) if layer.post_norms else added)
    return rmsnorm(x, weights["final_norm"], eps)


def head_logits(spec: ModelSpec, weights: Mapping[str, Floats], hidden: Floats) -> Floats:
    """Logits [n, vocab] of rows of `reference_hidden`."""
    head = weights["head" if "head" in weights else "embedding"]
    return softcap(hidden @ head.T, spec.logit_softcap)


def mlp(h: Floats, weights: Weights, layer: LayerSpec) -> Floats:
    """The MLP of one layer, `weights` named without the layer: h [n, hidden] -> [n, hidden]."""
    up = clamp(h @ weights["up"].T, layer.mlp_clamp)
    if layer.mlp is Mlp.RELU2:
        active: Floats = np.square(np.maximum(up, np.float32(0)))
    else:
        gate = clamp(h @ weights["gate"].T, layer.mlp_clamp)
        active = (silu(gate) if layer.mlp is Mlp.GATED_SILU else gelu_tanh(gate)) * up
    out: Floats = active @ weights["down"].T
    return out


def rmsnorm(x: Floats, weight: Floats, eps: float) -> Floats:
    """Over the last axis: x [..., size], weight [size]."""
    normed: Floats = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps)) * weight
    return normed


def silu(x: Floats) -> Floats:
    """x * sigmoid(x), without overflow for large negative x."""
    gated: Floats = x * (np.float32(0.5) * np.tanh(np.float32(0.5) * x) + np.float32(0.5))
    return gated


def gelu_tanh(x: Floats) -> Floats:
    """GELU in its tanh form: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    gated: Floats = np.float32(0.5) * x * (np.float32(1.0) + np.tanh(inner))
    return gated


def clamp(x: Floats, bound: float) -> Floats:
    """x within [-bound, bound]; a bound of 0 is none."""
    clamped: Floats = np.clip(x, np.float32(-bound), np.float32(bound)) if bound else x
    return clamped


def softcap(x: Floats, cap: float) -> Floats:
    """cap * tanh(x / cap); a cap of 0 is none."""
    capped: Floats = np.float32(cap) * np.tanh(x / np.float32(cap)) if cap else x
    return capped


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """RoPE by halves: x [heads, n, D]; cos, sin [n, D/2]."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def attend(q: Floats, k: Floats, v: Floats, layer: LayerSpec, sinks: Floats | None = None) -> Floats:
    """Causal attention, within the layer's window: q [heads, n, D], k and v [kv_heads, n, D] -> [n, heads *
    D]. The softmax of a head also runs over its sink, a logit [heads], whose share goes to nothing."""
    heads, n, dim = q.shape
    group = heads // layer.kv_heads
    out = np.empty((n, heads, dim), dtype=np.float32)
    positions = np.arange(n)
    scale = np.float32(layer.score_scale)
    for begin in range(0, n, _QUERY_BLOCK):
        rows = positions[begin : begin + _QUERY_BLOCK, None]  # [rows, 1]
        first = max(0, begin - layer.window + 1) if layer.window else 0
        keys = positions[first : begin + _QUERY_BLOCK][None, :]  # [1, keys]
        visible = keys <= rows
        if layer.window:
            visible &= keys > rows - layer.window
        span = slice(first, begin + _QUERY_BLOCK)
        for h in range(heads):
            scores = q[h, begin : begin + _QUERY_BLOCK] @ k[h // group, span].T * scale
            scores = np.where(visible, softcap(scores, layer.attention_softcap), np.float32(-np.inf))
            top = scores.max(axis=-1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks[h])
            scores = np.exp(scores - top)
            total = scores.sum(axis=-1, keepdims=True)
            if sinks is not None:
                total = total + np.exp(sinks[h] - top)
            out[begin : begin + _QUERY_BLOCK, h] = scores / total @ v[h // group, span]
    return out.reshape(n, heads * dim)


def _layer_weights(weights: Mapping[str, Floats], index: int) -> Weights:
    prefix = f"layers.{index}."
    return {name.removeprefix(prefix): weights[name] for name in weights if name.startswith(prefix)}


def _projected(h: Floats, weights: Weights, name: str, layer: LayerSpec) -> Floats:
    out: Floats = h @ weights[name].T
    if layer.qkv_bias:
        out = out + weights[f"{name}_bias"]
    by_head: Floats = clamp(out, layer.qkv_clamp).reshape(len(h), -1, layer.head_dim).swapaxes(0, 1)
    return by_head  # [n, heads * D] -> [heads, n, D]
