"""The quantised model's own activations, piece by piece, for calibration: the steps of a layer by the int8 kernels.

Results do not depend on the machine or its threads. A piece of text is read from position 0.
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
from duologue.kernels.gemm import Epilogue, PackedWeight, gemm_int8
from duologue.kernels.rows import (
    Codes,
    quantize_rows,
    rmsnorm_add_rows,
    rmsnorm_quantize_rows,
    rmsnorm_rows,
    rope_rotate,
)
from duologue.models.checkpoint import Weights
from duologue.models.rope import rope_kind
from duologue.models.spec import ModelSpec

Floats = npt.NDArray[np.float32]
Quantized = tuple[Codes, Floats]
"""Codes [n, K] and their scales [n]."""

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
T = TypeVar("T")


def embedded(spec: ModelSpec, embedding: Floats, token_ids: npt.NDArray[np.int32]) -> Floats:
    """The residual stream [n, hidden] as the executor begins it: from int8 rows."""
    codes, scale = quantize_rows(embedding[token_ids[: spec.context_tokens]], name="embedding")
    stream: Floats = codes.astype(np.float32) * scale[:, None] * np.float32(spec.embedding_scale)
    return stream


def normed(spec: ModelSpec, norm: Floats, streams: list[Floats], name: str) -> list[Quantized]:
    """Every stream [n, hidden] behind a norm, quantised. Raises ValueError naming the tensor when one is not finite."""
    return map_pieces(lambda x: rmsnorm_quantize_rows(x, norm, spec.norm_eps, name=name), streams)


def products(
    inputs: list[Quantized], packed: PackedWeight, epilogue: Epilogue = Epilogue.STORE, *, limit: float = 0.0
) -> list[Floats]:
    """Products of every piece with one packed map, as the executor ends them."""
    return map_pieces(lambda x: gemm_int8(x[0], x[1], packed, epilogue, limit=limit), inputs)


def add_products(
    spec: ModelSpec,
    groups: list[PackedWeight],
    inputs: list[list[Quantized]],
    streams: list[Floats],
    post_norm: Floats | None,
) -> None:
    """Adds the products of every group of inputs to the streams, in place."""
    out = streams if post_norm is None else [np.zeros_like(x) for x in streams]
    for packed, of_group in zip(groups, inputs, strict=True):
        map_pieces(lambda x, to, w=packed: gemm_int8(x[0], x[1], w, Epilogue.ADD, out=to), of_group, out)
    if post_norm is not None:
        streams[:] = map_pieces(lambda x, y: rmsnorm_add_rows(x, y, post_norm, spec.norm_eps), streams, out)


def attention(
    spec: ModelSpec, weights: Weights, i: int, qkv: Floats, cache: dict[int, npt.NDArray[np.uint8]]
) -> Floats:
    """Attention of one piece from position 0: qkv [n, columns] -> [n, heads * head_dim]. `cache` holds owners' pages."""
    layer, own = spec.layers[i], f"layers.{i}."
    n, heads, kv_heads, dim = len(qkv), layer.heads, layer.kv_heads, layer.head_dim
    group = heads // kv_heads
    q = turned_heads(spec, weights, i, qkv[:, : heads * dim], "q_norm")
    pages = np.arange(-(-n // PAGE_TOKENS), dtype=np.int32)
    block = kv_block_bytes(dim)
    if layer.kv_owner is None:
        keys, values = np.split(qkv[:, heads * dim :], 2, axis=1)
        k, v = turned_heads(spec, weights, i, keys, "k_norm"), values.reshape(n, kv_heads, dim)
        if own + "key_offset" in weights:
            k = k - weights[own + "key_offset"].reshape(kv_heads, dim)
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
        (scale * np.float32(layer.score_scale)).reshape(kv_heads, n * group),
        group=group,
        first_position=0,
        window=layer.window,
        softcap=layer.attention_softcap,
        sinks=weights[own + "sinks"].reshape(kv_heads, group) if layer.sinks else None,
    )
    return np.ascontiguousarray(out.reshape(kv_heads, n, group, dim).transpose(1, 0, 2, 3)).reshape(
        n, heads * dim
    )


def turned_heads(spec: ModelSpec, weights: Weights, i: int, columns: Floats, norm: str) -> Floats:
    """columns [n, heads * head_dim] from position 0 after their norm, if there is one, and RoPE -> [n, heads, head_dim]."""
    layer = spec.layers[i]
    x: Floats = columns.reshape(len(columns), -1, layer.head_dim)
    if layer.qk_norm:
        weight = weights[f"layers.{i}.{norm}"]
        x = rmsnorm_rows(x.reshape(-1, layer.head_dim), weight, spec.norm_eps).reshape(x.shape)
    return rope_rotate(x, *rope_kind(layer).tables(len(x)))


def map_pieces(function: Callable[..., T], *pieces: Iterable[Any]) -> list[T]:
    """`function` of each piece, several at a time: kernels run without Python's lock."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, *pieces))
