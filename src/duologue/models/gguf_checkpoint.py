"""A checkpoint from a GGUF file.

llama.cpp stores q and k of Llamas with each head's rows interleaved (row 2i and 2i + 1 turn together); the kernels turn
rows i and i + D/2 together, so the rows are put back into that order here. Those of other models are stored in the kernels' order,
and Gemma's norms as what they multiply by.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import Checkpoint, StoredWeights, check_weights, weight_shapes
from duologue.models.gguf_file import GgufFile, read_gguf_file
from duologue.models.gguf_spec import ROPE_DIVISORS, gguf_spec

_SOURCE_NAMES = {
    "embedding": "token_embd.weight",
    "head": "output.weight",
    "final_norm": "output_norm.weight",
}
_LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "attention_post_norm": "post_attention_norm",
    "mlp_norm": "ffn_norm",
    "mlp_post_norm": "post_ffw_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "output": "attn_output",
    "q_bias": "attn_q",
    "k_bias": "attn_k",
    "v_bias": "attn_v",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_INTERLEAVED = ("llama",)
"""Architectures whose q and k have each head's rows interleaved."""


def read_gguf(path: Path) -> Checkpoint:
    """Reads a file's description; its weights are dequantised when they are asked for.

    Raises ModelLoadError (missing, damaged, contradictory) or UnsupportedModelError (a feature that is not
    run), in one sentence that names the file, what is wrong and what to do.
    """
    file = read_gguf_file(path)
    try:
        return _checkpoint(path, file)
    except ModelLoadError as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: Exception) -> ModelLoadError:
    if isinstance(error, UnsupportedModelError):
        return UnsupportedModelError(f"{path}: {error}; choose another model")
    return ModelLoadError(f"{path}: {error}; the file is damaged, fetch or convert it again")


def _checkpoint(path: Path, file: GgufFile) -> Checkpoint:
    spec = gguf_spec(file)
    names = {name: source_name(name) for name in weight_shapes(spec)}
    interleaved = {
        source_name(f"layers.{i}.{name}"): heads
        for i, layer in enumerate(spec.layers)
        for name, heads in (("q", layer.heads), ("k", layer.kv_heads))
        if spec.architecture in _INTERLEAVED
    }

    def read(source: str) -> npt.NDArray[np.float32]:
        values = file.tensors[source].floats()
        return unpermute_rows(values, interleaved[source]) if source in interleaved else values

    used = {ROPE_DIVISORS} if any(layer.rope_divisors for layer in spec.layers) else set()
    found = {t.name: t.shape for t in file.tensors.values() if t.name not in used}
    check_weights(spec, names, found)
    for tensor in {tensor.kind: tensor for tensor in file.tensors.values()}.values():
        tensor.check_kind()
    template = file.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        name=str(file.metadata.get("general.name") or path.stem),
        spec=spec,
        weights=StoredWeights(names, read, functools.partial(_failed, path)),
        chat_template=template if isinstance(template, str) else None,
        tokenizer_metadata={k: v for k, v in file.metadata.items() if k.startswith("tokenizer.")},
    )


def unpermute_rows(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from interleaved to rotate-half order: [heads * D, K] -> the same shape."""
    rows, depth = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, depth)  # [H, D/2, 2, K]
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, depth)


def permute_rows(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """The inverse of `unpermute_rows`: as a converter to GGUF stores q and k."""
    rows, depth = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, depth)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, depth)


def source_name(name: str) -> str:
    """The name in a GGUF file of a canonical weight name."""
    if not name.startswith("layers."):
        return _SOURCE_NAMES[name]
    _, index, part = name.split(".")
    return f"blk.{index}.{_LAYER_NAMES[part]}.{'bias' if part.endswith('_bias') else 'weight'}"
