"""A whole forward pass of one sequence in numpy, equal to the executor's logits bit for bit.

It says in one readable page what the C++ step computes; it is slow and keeps no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.kernels.reference.attention import attend
from duologue.kernels.reference.rows import (
    Codes,
    Floats,
    quantize_rows,
    rmsnorm_quantize_rows,
    rope_rotate,
    silu_mul,
)


@dataclass(frozen=True)
class Linear:
    """int8 codes [N, K] and one scale [N] for each output channel."""

    codes: Codes
    scale: Floats

    def __call__(self, a_codes: Codes, a_scale: Floats) -> Floats:
        acc = a_codes.astype(np.int32) @ self.codes.astype(np.int32).T  # [M, K] @ [K, N] -> [M, N]
        return np.asarray((acc.astype(np.float32) * a_scale[:, None]) * self.scale[None, :])


@dataclass(frozen=True)
class Layer:
    """Weights and shape of one decoder layer; `kv_owner` as in the layer spec (None: its own)."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int
    kv_owner: int | None
    rope_cos: Floats  # [positions, head_dim / 2]
    rope_sin: Floats
    attention_norm: Floats
    mlp_norm: Floats
    qkv: Linear
    output: Linear
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Decoder:
    """Embedding and head are [vocab, hidden]."""

    norm_eps: float
    embedding: Linear
    head: Linear
    final_norm: Floats
    layers: Sequence[Layer]


def forward(model: Decoder, token_ids: npt.NDArray[np.int32]) -> Floats:
    """Logits [n, vocab] of tokens [n] at positions 0 .. n - 1."""
    n = len(token_ids)
    x = model.embedding.codes[token_ids].astype(np.float32) * model.embedding.scale[token_ids][:, None]
    stored: list[
        tuple[Floats, Floats]
    ] = []  # keys after RoPE and values of each layer, [n, kv_heads, head_dim]
    for layer in model.layers:
        qkv = layer.qkv(*rmsnorm_quantize_rows(x, layer.attention_norm, model.norm_eps))
        cos, sin = layer.rope_cos[:n], layer.rope_sin[:n]
        columns = layer.heads * layer.head_dim
        q = rope_rotate(qkv[:, :columns].reshape(n, layer.heads, layer.head_dim), cos, sin)
        if layer.kv_owner is None:
            k, v = np.split(qkv[:, columns:], 2, axis=1)
            k = rope_rotate(k.reshape(n, layer.kv_heads, layer.head_dim), cos, sin)
            stored.append((k, v.reshape(n, layer.kv_heads, layer.head_dim)))
        else:
            stored.append(stored[layer.kv_owner])
        attended = _attention(layer, q, *stored[-1])
        x = x + layer.output(*quantize_rows(attended))
        a_codes, a_scale = rmsnorm_quantize_rows(x, layer.mlp_norm, model.norm_eps)
        hidden = silu_mul(layer.gate(a_codes, a_scale), layer.up(a_codes, a_scale))
        x = x + layer.down(*quantize_rows(hidden))
    return model.head(*rmsnorm_quantize_rows(x, model.final_norm, model.norm_eps))


def _attention(layer: Layer, q: Floats, k: Floats, v: Floats) -> Floats:
    n, group = len(q), layer.heads // layer.kv_heads
    softmax_scale = np.float32(layer.head_dim**-0.5)
    out = np.empty((n, layer.heads, layer.head_dim), dtype=np.float32)
    for h in range(layer.kv_heads):
        of_head = slice(h * group, (h + 1) * group)
        codes, scale = quantize_rows(q[:, of_head].reshape(n * group, layer.head_dim))
        rows = attend(
            codes, scale * softmax_scale, k[:, h], v[:, h], group=group, first_position=0, window=layer.window
        )
        out[:, of_head] = rows.reshape(n, group, layer.head_dim)
    return out.reshape(n, layer.heads * layer.head_dim)
