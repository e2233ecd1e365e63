"""The int8 model with attention in float32: what weights and activations alone cost in int8.

The maps are the engine's own, codes and kernels; queries, keys, values and probabilities are never quantised. It keeps no cache
and serves nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from duologue.kernels.gemm import Epilogue, PackedWeight, gemm_int8
from duologue.kernels.rows import (
    quantize_rows,
    rmsnorm_add_rows,
    rmsnorm_quantize_rows,
    rmsnorm_rows,
    rope_rotate,
)
from duologue.models.pack import MLP_EPILOGUES, down_weights, layer_weights, packed_weight
from duologue.models.packed_model import PackedModel
from duologue.models.reference import attend
from duologue.models.rope import rope_kind

Floats = npt.NDArray[np.float32]


def float_attention_logits(model: PackedModel, ids: Sequence[int], *, chunk_tokens: int) -> Iterator[Floats]:
    """Logits [rows, vocab] of tokens that start at position 0, at most `chunk_tokens` rows at a time."""
    spec, arrays, n = model.spec, model.arrays, len(ids)
    embedding = packed_weight(arrays, "embedding", spec.vocab_size, spec.hidden_size)
    x = _unpacked_rows(embedding.codes, np.asarray(ids)) * embedding.scale[np.asarray(ids), None]
    x = np.ascontiguousarray(x[:, : spec.hidden_size], dtype=np.float32) * np.float32(spec.embedding_scale)
    x = x * arrays.get("embedding_channels", np.float32(1.0))
    stored: list[tuple[Floats, Floats]] = []  # [kv_heads, n, head_dim]
    for i, layer in enumerate(spec.layers):
        maps, own = layer_weights(arrays, spec, i), f"layers.{i}."
        inputs = rmsnorm_quantize_rows(x, arrays[own + "attention_norm"], spec.norm_eps)
        columns = gemm_int8(*inputs, maps["qkv"], limit=layer.qkv_clamp)
        heads = columns.reshape(n, -1, layer.head_dim)
        q = _turned(model, i, "q_norm", heads[:, : layer.heads])
        if layer.kv_owner is None:
            k, v = np.split(heads[:, layer.heads :], 2, axis=1)
            stored.append((_turned(model, i, "k_norm", k), v.swapaxes(0, 1)))
        else:
            stored.append(stored[layer.kv_owner])
        sinks = arrays[own + "sinks"][: layer.heads] if layer.sinks else None
        attended = attend(q, *stored[i], layer, sinks)
        x = _added(model, x, attended, [maps["output"]], own + "attention_post_norm")
        inputs = rmsnorm_quantize_rows(x, arrays[own + "mlp_norm"], spec.norm_eps)
        hidden = gemm_int8(*inputs, maps["gate_up"], MLP_EPILOGUES[layer.mlp], limit=layer.mlp_clamp)
        x = _added(model, x, hidden, down_weights(arrays, spec, i), own + "mlp_post_norm")
    untied = "head.codes" in arrays
    head = packed_weight(arrays, "head", spec.vocab_size, spec.hidden_size) if untied else embedding
    cap = spec.logit_softcap
    for begin in range(0, n, chunk_tokens):
        rows = rmsnorm_quantize_rows(x[begin : begin + chunk_tokens], arrays["final_norm"], spec.norm_eps)
        yield gemm_int8(*rows, head, Epilogue.SOFTCAP if cap else Epilogue.STORE, limit=cap)


def _turned(model: PackedModel, i: int, norm: str, x: Floats) -> Floats:
    """x [n, heads, head_dim] after its norm, if there is one, and RoPE -> [heads, n, head_dim]."""
    layer, weight = model.spec.layers[i], model.arrays.get(f"layers.{i}.{norm}")
    if weight is not None:
        x = rmsnorm_rows(x.reshape(-1, layer.head_dim), weight, model.spec.norm_eps).reshape(x.shape)
    tables = rope_kind(layer).tables(len(x))
    by_head: Floats = rope_rotate(x, *tables).swapaxes(0, 1)
    return by_head


def _added(model: PackedModel, x: Floats, inputs: Floats, groups: list[PackedWeight], norm: str) -> Floats:
    """x [n, hidden] and the product of the quantised inputs with a map, which may have a norm of its own."""
    post_norm = model.arrays.get(norm)
    out = x if post_norm is None else np.zeros_like(x)
    for part, weight in zip(np.split(inputs, len(groups), axis=1), groups, strict=True):
        gemm_int8(*quantize_rows(part), weight, Epilogue.ADD, out=out)
    return out if post_norm is None else rmsnorm_add_rows(x, out, post_norm, model.spec.norm_eps)


def _unpacked_rows(codes: npt.NDArray[np.int8], rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int8]:
    """Rows of packed codes [N/64, K/4, 64, 4] -> [n, K]."""
    by_row = codes[rows // codes.shape[2], :, rows % codes.shape[2], :]  # [n, K/4, 4]
    return np.ascontiguousarray(by_row).reshape(len(rows), -1)
