"""Writes a random Llama as a GGUF file with the `gguf` package's own writer, as a converter would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from duologue.models.checkpoint import Weights
from duologue.models.gguf_checkpoint import permute_rows, source_name
from duologue.models.spec import ModelSpec

Q = gguf.GGMLQuantizationType
TOKENS = ["<|endoftext|>", "a", "b", "ab"]


def write_gguf(
    path: Path,
    spec: ModelSpec,
    weights: Weights,
    *,
    kinds: Mapping[str, Q] | None = None,
    metadata: Mapping[str, Any] | None = None,
    architecture: str = "llama",
    tensors: Mapping[str, npt.NDArray[Any] | None] | None = None,
) -> Path:
    """`kinds` are the quantisations of canonical weights (float32 by default); `metadata` and
    `tensors` replace or add entries and tensors, by their names in the file; None leaves one out."""
    layer = spec.layers[0]
    entries: dict[str, Any] = {
        "llama.context_length": spec.context_tokens,
        "llama.embedding_length": spec.hidden_size,
        "llama.block_count": len(spec.layers),
        "llama.feed_forward_length": layer.mlp_size,
        "llama.attention.head_count": layer.heads,
        "llama.attention.head_count_kv": layer.kv_heads,
        "llama.attention.key_length": layer.head_dim,
        "llama.attention.value_length": layer.head_dim,
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(spec.norm_eps)),
        "llama.rope.dimension_count": layer.head_dim,
        "llama.rope.freq_base": layer.rope_base,
        "general.name": "Tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0, -1.5, 2.0, 0.25],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**entries, **(metadata or {})}.items():
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    stored: dict[str, tuple[npt.NDArray[Any], Q]] = {}
    for name, values in weights.items():
        kind = (kinds or {}).get(name, Q.F32)
        part = name.rsplit(".", 1)[-1]
        if part in ("q", "k"):
            values = permute_rows(values, layer.heads if part == "q" else layer.kv_heads)
        stored[source_name(name)] = (gguf.quants.quantize(values, kind), kind)
    for name, replacement in (tensors or {}).items():
        stored.pop(name, None)
        if replacement is not None:
            stored[name] = (replacement, Q.F32)
    for name, (values, kind) in stored.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
