"""Writes a random Llama, Qwen or Gemma as a GGUF file with the `gguf` package's own writer, as a converter would."""

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
    architecture: str | None = None,
    tensors: Mapping[str, npt.NDArray[Any] | None] | None = None,
) -> Path:
    """Gemma's windows must be those of llama.cpp's patterns.

    `kinds` are the quantisations of canonical weights (float32 by default); `metadata` and
    `tensors` replace or add entries and tensors, by their names in the file; None leaves one out."""
    layer = spec.layers[0]
    # Metadata say RoPE of global layers.
    last = next((other for other in spec.layers if not other.window), layer)
    arch = spec.architecture
    entries: dict[str, Any] = {
        f"{arch}.context_length": spec.context_tokens,
        f"{arch}.embedding_length": spec.hidden_size,
        f"{arch}.block_count": len(spec.layers),
        f"{arch}.feed_forward_length": layer.mlp_size,
        f"{arch}.attention.head_count": layer.heads,
        f"{arch}.attention.head_count_kv": layer.kv_heads,
        f"{arch}.attention.key_length": layer.head_dim,
        f"{arch}.attention.value_length": layer.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(np.float32(spec.norm_eps)),
        f"{arch}.rope.dimension_count": layer.head_dim,
        f"{arch}.rope.freq_base": last.rope_base,
        "general.name": "Tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0, -1.5, 2.0, 0.25],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }
    if arch.startswith("gemma"):
        entries |= {
            f"{arch}.attention.sliding_window": layer.window or None,
            f"{arch}.attn_logit_softcapping": layer.attention_softcap or None,
            f"{arch}.final_logit_softcapping": spec.logit_softcap or None,
        }
    if last.rope_factor != 1.0:
        entries |= {
            f"{arch}.rope.scaling.type": "linear",
            f"{arch}.rope.scaling.factor": last.rope_factor,
        }
    writer = gguf.GGUFWriter(path, architecture or arch)
    for key, value in {**entries, **(metadata or {})}.items():
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
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
        if part in ("q", "k") and arch == "llama":  # the only architecture whose rows are turned about
            values = permute_rows(values, layer.heads if part == "q" else layer.kv_heads)
        stored[source_name(name)] = (gguf.quants.quantize(values, kind), kind)
    if last.rope_divisors:
        stored["rope_freqs.weight"] = (np.array(last.rope_divisors, np.float32), Q.F32)
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
