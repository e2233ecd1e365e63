"""The int8 model with attention in float32: what weights and activations alone cost in int8.

The maps are the engine's own, codes and kernels; queries, keys, values and probabilities are never quantised. It keeps no cache
and serves nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from duologue.kernels.gemm import Epilogue, gemm_int8
from duologue.kernels.rows import quantize_rows, rmsnorm_quantize_rows, rope_rotate
from duologue.models.pack import layer_weights, packed_weight
from duologue.models.packed_model import PackedModel
from duologue.models.reference import attend
from duologue.models.rope import rope_tables

Floats = npt.NDArray[np.float32]


def float_attention_logits(model: PackedModel, ids: Sequence[int], *, chunk_tokens: int) -> Iterator[Floats]:
    """Logits [rows, vocab] of tokens that start at position 0, at most `chunk_tokens` rows at a time."""
    spec, arrays, n = model.spec, model.arrays, len(ids)
    embedding = packed_weight(arrays, "embedding", spec.vocab_size, spec.hidden_size)
    x = _unpacked_rows(embedding.codes, np.asarray(ids)) * embedding.scale[np.asarray(ids), None]
    x = np.ascontiguousarray(x[:, : spec.hidden_size], dtype=np.float32)
    stored: list[tuple[Floats, Floats]] = []  # [kv_heads, n, head_dim]
    for i, layer in enumerate(spec.layers):
        maps, own = layer_weights(arrays, spec, i), f"layers.{i}."
        columns = gemm_int8(
            *rmsnorm_quantize_rows(x, arrays[own + "attention_norm"], spec.norm_eps), maps["qkv"]
        )
        heads = columns.reshape(n, -1, layer.head_dim)
        tables = rope_tables(layer.rope_base, layer.head_dim, n, layer.rope_factor)
        q = rope_rotate(heads[:, : layer.heads], *tables).swapaxes(0, 1)
        if layer.kv_owner is None:
            k, v = np.split(heads[:, layer.heads :], 2, axis=1)
            stored.append((rope_rotate(k, *tables).swapaxes(0, 1), v.swapaxes(0, 1)))
        else:
            stored.append(stored[layer.kv_owner])
        attended = attend(q, *stored[i], layer)
        gemm_int8(*quantize_rows(attended), maps["output"], Epilogue.ADD, out=x)
        inputs = rmsnorm_quantize_rows(x, arrays[own + "mlp_norm"], spec.norm_eps)
        hidden = gemm_int8(*inputs, maps["gate_up"], Epilogue.GATED_SILU)
        gemm_int8(*quantize_rows(hidden), maps["down"], Epilogue.ADD, out=x)
    head = (
        packed_weight(arrays, "head", spec.vocab_size, spec.hidden_size)
        if "head.codes" in arrays
        else embedding
    )
    for begin in range(0, n, chunk_tokens):
        rows = x[begin : begin + chunk_tokens]
        yield gemm_int8(*rmsnorm_quantize_rows(rows, arrays["final_norm"], spec.norm_eps), head)


def _unpacked_rows(codes: npt.NDArray[np.int8], rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int8]:
    """Rows of packed codes [N/64, K/4, 64, 4] -> [n, K]."""
    by_row = codes[rows // codes.shape[2], :, rows % codes.shape[2], :]  # [n, K/4, 4]
    return np.ascontiguousarray(by_row).reshape(len(rows), -1)
