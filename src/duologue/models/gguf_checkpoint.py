"""A Llama checkpoint from a GGUF file.

llama.cpp stores q and k with each head's rows interleaved (row 2i and 2i + 1 turn together); the kernels turn
rows i and i + D/2 together, so the rows are put back into that order here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import Checkpoint, collect_weights, weight_shapes
from duologue.models.gguf_file import GgufFile, read_gguf_file
from duologue.models.spec import LayerSpec, ModelSpec

_SOURCE_NAMES = {
    "embedding": "token_embd.weight",
    "head": "output.weight",
    "final_norm": "output_norm.weight",
}
_LAYER_NAMES = {
    "attention_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
# Settings that change what the model computes, with the values under which they change nothing.
_NEUTRAL = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.sliding_window": (0,),
    "attention.scale": (0.0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
}
_DEFAULT_ROPE_BASE = 10000.0


def read_gguf(path: Path) -> Checkpoint:
    """Reads and dequantises a whole file.

    Raises ModelLoadError (missing, damaged, contradictory) or UnsupportedModelError (a feature that is not
    run), in one sentence that names the file, what is wrong and what to do.
    """
    file = read_gguf_file(path)
    try:
        return _checkpoint(path, file)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}; choose another model") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}; the file is damaged, fetch or convert it again") from error


def _checkpoint(path: Path, file: GgufFile) -> Checkpoint:
    spec = _spec(file)
    names = {name: source_name(name) for name in weight_shapes(spec)}
    if "rope_freqs.weight" in file.tensors:
        raise UnsupportedModelError("RoPE frequency factors (tensor rope_freqs.weight) are not supported")
    heads = {
        source_name(f"layers.{i}.{name}"): count
        for i, layer in enumerate(spec.layers)
        for name, count in (("q", layer.heads), ("k", layer.kv_heads))
    }

    def read(source: str) -> npt.NDArray[np.float32]:
        values = file.tensors[source].floats()
        return unpermute_rows(values, heads[source]) if source in heads else values

    weights = collect_weights(spec, names, {t.name: t.shape for t in file.tensors.values()}, read)
    template = file.metadata.get("tokenizer.chat_template")
    return Checkpoint(
        name=str(file.metadata.get("general.name") or path.stem),
        spec=spec,
        weights=weights,
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
    """The name in a Llama GGUF file of a canonical weight name."""
    if not name.startswith("layers."):
        return _SOURCE_NAMES[name]
    _, index, part = name.split(".")
    return f"blk.{index}.{_LAYER_NAMES[part]}.weight"


def _spec(file: GgufFile) -> ModelSpec:
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError(
            f"architecture {architecture!r} (general.architecture) is not supported; supported is 'llama'"
        )
    settings = _Settings(file.metadata, "llama.")
    for name, neutral in _NEUTRAL.items():
        value = settings.optional(name, neutral[0])
        if value not in neutral:
            raise UnsupportedModelError(f"llama.{name} = {value!r} is not supported")
    hidden, count = settings.integer("embedding_length"), settings.integer("block_count")
    if not 1 <= count <= len(file.tensors):
        raise ModelLoadError(f"llama.block_count is {count}, but the file has {len(file.tensors)} tensors")
    heads = settings.per_layer("attention.head_count", count)
    if min(heads) < 1:
        raise UnsupportedModelError(
            "layers without attention heads (llama.attention.head_count) are not supported"
        )
    kv_heads = settings.per_layer("attention.head_count_kv", count, default=heads)
    mlp_size = settings.per_layer("feed_forward_length", count)
    head_dim = settings.integer("attention.key_length", default=hidden // heads[0])
    for name in ("attention.value_length", "rope.dimension_count"):
        other = settings.integer(name, default=head_dim)
        if other != head_dim:
            raise UnsupportedModelError(
                f"llama.{name} is {other} where the head size is {head_dim}; only equal sizes are supported"
            )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError("tensor token_embd.weight is missing")
    rope_base = settings.number("rope.freq_base", default=_DEFAULT_ROPE_BASE)
    return ModelSpec(
        architecture="llama",
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        context_tokens=settings.integer("context_length"),
        norm_eps=settings.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in file.tensors,
        layers=tuple(
            LayerSpec(h, kv, head_dim, mlp, rope_base)
            for h, kv, mlp in zip(heads, kv_heads, mlp_size, strict=True)
        ),
    )


class _Settings:
    """The metadata entries below one prefix, checked for type; ModelLoadError names a missing or odd one."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def optional(self, name: str, default: Any) -> Any:
        return self._metadata.get(self._prefix + name, default)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelLoadError(f"{self._prefix}{name} is {value!r}, not a number")
        return float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        return self._integer(name, self._required(name, default))

    def per_layer(self, name: str, count: int, default: list[int] | None = None) -> list[int]:
        """One number for all layers, or a list with one for each."""
        value = self._required(name, default)
        values = value if isinstance(value, list) else [value] * count
        if len(values) != count:
            raise ModelLoadError(f"{self._prefix}{name} has {len(values)} entries for {count} layers")
        return [self._integer(name, v) for v in values]

    def _integer(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelLoadError(f"{self._prefix}{name} is {value!r}, not a whole number")
        return value

    def _required(self, name: str, default: Any) -> Any:
        value = self._metadata.get(self._prefix + name, default)
        if value is None:
            raise ModelLoadError(f"metadata entry {self._prefix}{name} is missing")
        return value
