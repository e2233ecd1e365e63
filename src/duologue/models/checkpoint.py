"""A model as read from its source: spec, float weights, and what the dialogue layer needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.spec import ModelSpec

ReadTensor = Callable[[str], npt.NDArray[np.float32]]
Failed = Callable[[Exception], ModelLoadError]
"""Makes of an error in reading what the user sees: with the path, and what to do."""

Weights = dict[str, npt.NDArray[np.float32]]
"""Canonical names, all float32, linear maps as [out, in], RoPE by halves:

embedding [vocab, hidden]; head [vocab, hidden] unless tied; final_norm [hidden];
layers.{i}.attention_norm, layers.{i}.mlp_norm [hidden]; with post-norms attention_post_norm and mlp_post_norm [hidden];
layers.{i}.q, .k, .v, .output, .gate, .up, .down, without k and v where KV is shared, without gate where the MLP has none;
with biases q_bias and (where the layer owns its KV) k_bias and v_bias, each of as many values as its map has rows;
with QK-norm q_norm and (where the layer owns its KV) k_norm [head_dim]; with sinks, sinks [heads].
Calibration may add embedding_channels [hidden], which the channels of embedding rows are multiplied by; the head's are not; and
layers.{i}.key_offset [kv_heads * head_dim], taken off the keys of a layer with KV of its own after RoPE, before they are stored.
Norm weights are what the normalised values are multiplied by: Gemma's are stored as weight - 1 and read as weight.
"""


@dataclass(frozen=True)
class Checkpoint:
    """A model described, its weights in files or in memory, not yet quantised.

    `weights` have the canonical names. Those of a file are read each time they are asked for (see `StoredWeights`), so that a model
    larger than memory can be quantised part by part; `loaded` is for whoever uses them more than once.

    Exactly one of `tokenizer_metadata` (a GGUF file's key-value pairs) and `tokenizer_folder` (a Hugging Face
    folder) is set.
    """

    name: str
    spec: ModelSpec
    weights: Mapping[str, npt.NDArray[np.float32]]
    chat_template: str | None
    tokenizer_metadata: Mapping[str, object] = field(default_factory=dict)
    tokenizer_folder: Path | None = None

    def loaded(self) -> Checkpoint:
        """The same with all weights in memory. Raises as reading them does."""
        return replace(self, weights=dict(self.weights))


class StoredWeights(Mapping[str, npt.NDArray[np.float32]]):
    """The weights of a file by their canonical names; each look-up reads and converts one.

    A look-up raises what `read` raises, and ModelLoadError for a value that is not finite, both as `failed` makes them.
    """

    def __init__(self, source_names: Mapping[str, str], read: ReadTensor, failed: Failed) -> None:
        self._source_names = source_names
        self._read = read
        self._failed = failed

    def __getitem__(self, name: str) -> npt.NDArray[np.float32]:
        source = self._source_names[name]
        try:
            values = np.ascontiguousarray(self._read(source), dtype=np.float32)
            if not np.isfinite(values).all():
                raise ModelLoadError(f"tensor {source} holds a NaN or an infinity")
        except (OSError, ModelLoadError) as error:
            raise self._failed(error) from error
        return values

    def __contains__(self, name: object) -> bool:  # Mapping's own would read the tensor
        return name in self._source_names

    def __iter__(self) -> Iterator[str]:
        return iter(self._source_names)

    def __len__(self) -> int:
        return len(self._source_names)


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The canonical names that a model of this spec has, with their shapes."""
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": (spec.vocab_size, hidden), "final_norm": (hidden,)}
    if not spec.tied_head:
        shapes["head"] = (spec.vocab_size, hidden)
    for i, layer in enumerate(spec.layers):
        query, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        own: dict[str, tuple[int, ...]] = {"attention_norm": (hidden,), "mlp_norm": (hidden,)}
        if layer.post_norms:
            own |= {"attention_post_norm": (hidden,), "mlp_post_norm": (hidden,)}
        own["q"] = (query, hidden)
        if layer.kv_owner is None:
            own |= {"k": (kv, hidden), "v": (kv, hidden)}
        if layer.qkv_bias:
            own["q_bias"] = (query,)
            if layer.kv_owner is None:
                own |= {"k_bias": (kv,), "v_bias": (kv,)}
        if layer.qk_norm:
            own["q_norm"] = (layer.head_dim,)
            if layer.kv_owner is None:
                own["k_norm"] = (layer.head_dim,)
        if layer.sinks:
            own["sinks"] = (layer.heads,)
        own["output"] = (hidden, query)
        if layer.mlp.gated:
            own["gate"] = (layer.mlp_size, hidden)
        own |= {"up": (layer.mlp_size, hidden), "down": (hidden, layer.mlp_size)}
        shapes |= {f"layers.{i}.{name}": shape for name, shape in own.items()}
    return shapes


def check_weights(
    spec: ModelSpec, source_names: Mapping[str, str], found: Mapping[str, tuple[int, ...]]
) -> None:
    """That a file has every weight of the spec and nothing else.

    `source_names` maps canonical names to those in the file, `found` those to the shapes in the file. Raises ModelLoadError for a
    missing tensor or a wrong shape, UnsupportedModelError for a tensor that the spec has no place for; each names the tensor as the
    file does.
    """
    shapes = weight_shapes(spec)
    unknown = sorted(found.keys() - {source_names[name] for name in shapes})
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UnsupportedModelError(
            f"tensor {unknown[0]}{more} has no place in a {spec.architecture} model as this version runs it"
            f"{' (such a bias is not supported)' if unknown[0].endswith('bias') else ''}"
        )
    for name, shape in shapes.items():
        source = source_names[name]
        if source not in found:
            raise ModelLoadError(f"tensor {source} {list(shape)} is missing")
        if tuple(found[source]) != shape:
            raise ModelLoadError(
                f"tensor {source} has shape {list(found[source])} where {list(shape)} was expected"
            )


def parameter_count(spec: ModelSpec) -> int:
    """Weights of a model of this spec, a tied head counted once."""
    return sum(math.prod(shape) for shape in weight_shapes(spec).values())
