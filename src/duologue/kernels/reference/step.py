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
    clamp,
    gelu_mul,
    quantize_rows,
    relu2,
    rmsnorm_quantize_rows,
    rmsnorm_rows,
    rope_rotate,
    silu_mul,
    softcap,
)


@dataclass(frozen=True)
class Linear:
    """int8 codes [N, K], one scale and, if there is one, a bias [N] for each output channel."""

    codes: Codes
    scale: Floats
    bias: Floats | None = None

    def __call__(self, a_codes: Codes, a_scale: Floats) -> Floats:
        acc = a_codes.astype(np.int32) @ self.codes.astype(np.int32).T  # [M, K] @ [K, N] -> [M, N]
        out = (acc.astype(np.float32) * a_scale[:, None]) * self.scale[None, :]
        return np.asarray(out if self.bias is None else out + self.bias)

    def split(self, groups: int) -> list[Linear]:
        """The maps of equal, neighbouring groups of inputs."""
        return [Linear(codes, self.scale) for codes in np.split(self.codes, groups, axis=1)]


@dataclass(frozen=True)
class Layer:
    """Weights and shape of one decoder layer.

    Fields as in the layer spec (`kv_owner` None: its own), a clamp or cap of 0 being none. With `gate`, the MLP is
    `activation(gate, up)`; without, squared ReLU of `up`.
    """

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
    gate: Linear | None
    up: Linear
    down: Linear
    gelu: bool = False
    softmax_scale: float = 0.0  # 0: head_dim ** -0.5
    attention_softcap: float = 0.0
    qkv_clamp: float = 0.0
    mlp_clamp: float = 0.0
    attention_post_norm: Floats | None = None
    mlp_post_norm: Floats | None = None
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    sinks: Floats | None = None
    key_offset: Floats | None = None  # [kv_heads, head_dim], taken off keys before they are stored
    down_groups: int = 1  # of the down projection's input, each with a scale of its own


@dataclass(frozen=True)
class Decoder:
    """Embedding and head are [vocab, hidden]."""

    norm_eps: float
    embedding: Linear
    head: Linear
    final_norm: Floats
    layers: Sequence[Layer]
    embedding_scale: float = 1.0
    embedding_channels: Floats | None = None
    logit_softcap: float = 0.0


def forward(model: Decoder, token_ids: npt.NDArray[np.int32]) -> Floats:
    """Logits [n, vocab] of tokens [n] at positions 0 .. n - 1."""
    n = len(token_ids)
    x = model.embedding.codes[token_ids].astype(np.float32) * model.embedding.scale[token_ids][:, None]
    x = x * np.float32(model.embedding_scale)
    if model.embedding_channels is not None:
        x = x * model.embedding_channels
    stored: list[
        tuple[Floats, Floats]
    ] = []  # keys after RoPE and values of each layer, [n, kv_heads, head_dim]
    for layer in model.layers:
        eps = model.norm_eps
        qkv = clamp(layer.qkv(*rmsnorm_quantize_rows(x, layer.attention_norm, eps)), layer.qkv_clamp)
        cos, sin = layer.rope_cos[:n], layer.rope_sin[:n]
        columns = layer.heads * layer.head_dim
        q = _head_norm(qkv[:, :columns].reshape(n, layer.heads, layer.head_dim), layer.q_norm, eps)
        q = rope_rotate(q, cos, sin)
        if layer.kv_owner is None:
            k, v = np.split(qkv[:, columns:], 2, axis=1)
            k = _head_norm(k.reshape(n, layer.kv_heads, layer.head_dim), layer.k_norm, eps)
            k = rope_rotate(k, cos, sin)
            if layer.key_offset is not None:
                k = k - layer.key_offset
            stored.append((k, v.reshape(n, layer.kv_heads, layer.head_dim)))
        else:
            stored.append(stored[layer.kv_owner])
        attended = _attention(layer, q, *stored[-1])
        x = x + _post_norm(layer.output(*quantize_rows(attended)), layer.attention_post_norm, eps)
        hidden = _mlp(layer, *rmsnorm_quantize_rows(x, layer.mlp_norm, eps))
        parts = zip(
            np.split(hidden, layer.down_groups, axis=1), layer.down.split(layer.down_groups), strict=True
        )
        products = [down(*quantize_rows(part)) for part, down in parts]
        if layer.mlp_post_norm is not None:
            products = [rmsnorm_rows(sum(products[1:], products[0]), layer.mlp_post_norm, eps)]
        for product in products:
            x = x + product
    logits = model.head(*rmsnorm_quantize_rows(x, model.final_norm, model.norm_eps))
    return softcap(logits, np.float32(model.logit_softcap)) if model.logit_softcap > 0 else logits


def _mlp(layer: Layer, codes: Codes, scale: Floats) -> Floats:
    up = clamp(layer.up(codes, scale), layer.mlp_clamp)
    if layer.gate is None:
        return relu2(up)
    return (gelu_mul if layer.gelu else silu_mul)(clamp(layer.gate(codes, scale), layer.mlp_clamp), up)


def _post_norm(added: Floats, weight: Floats | None, eps: float) -> Floats:
    return added if weight is None else rmsnorm_rows(added, weight, eps)


def _head_norm(x: Floats, weight: Floats | None, eps: float) -> Floats:
    """x [n, heads, D], every head by itself."""
    return x if weight is None else rmsnorm_rows(x.reshape(-1, x.shape[2]), weight, eps).reshape(x.shape)


def _attention(layer: Layer, q: Floats, k: Floats, v: Floats) -> Floats:
    n, group = len(q), layer.heads // layer.kv_heads
    softmax_scale = np.float32(layer.softmax_scale or layer.head_dim**-0.5)
    out = np.empty((n, layer.heads, layer.head_dim), dtype=np.float32)
    for h in range(layer.kv_heads):
        of_head = slice(h * group, (h + 1) * group)
        codes, scale = quantize_rows(q[:, of_head].reshape(n * group, layer.head_dim))
        rows = attend(
            codes,
            scale * softmax_scale,
            k[:, h],
            v[:, h],
            group=group,
            first_position=0,
            window=layer.window,
            softcap=layer.attention_softcap,
            sinks=None if layer.sinks is None else layer.sinks[of_head],
        )
        out[:, of_head] = rows.reshape(n, group, layer.head_dim)
    return out.reshape(n, layer.heads * layer.head_dim)
