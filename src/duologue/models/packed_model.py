"""A model ready to run: packed arrays, its tokenizer and template, and the description the executor takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from duologue.kernels import _native
from duologue.models.hold import Hold
from duologue.models.pack import (
    MLP_EPILOGUES,
    down_weights,
    layer_weights,
    optional_norms,
    packed_weight,
)
from duologue.models.rope import rope_kind, rope_kinds
from duologue.models.spec import ModelSpec


@dataclass(frozen=True)
class PackedModel:
    """`arrays` as `pack.pack_model` names them; `tokenizer` in the dialogue layer's packed form.

    Models with the same `key`, if they have one, have the same arrays: it is a digest of the source and of all that makes them.
    """

    name: str
    spec: ModelSpec
    arrays: Mapping[str, npt.NDArray[Any]] = field(repr=False)
    tokenizer: bytes = field(repr=False)
    chat_template: str | None = field(default=None, repr=False)
    key: str = ""
    hold: Hold | None = field(default=None, repr=False, compare=False)
    """Keeps the packed file from being removed while this lives."""

    @property
    def weight_bytes(self) -> int:
        """Memory that the packed arrays take."""
        return sum(array.nbytes for array in self.arrays.values())

    def native(self) -> _native.Model:
        """The executor's model, pointing into `arrays`, which it keeps alive.

        Raises KeyError or ValueError when the arrays are not those of the spec.
        """
        spec, arrays = self.spec, self.arrays
        vocab, hidden = spec.vocab_size, spec.hidden_size
        model = _native.Model(
            vocab=vocab,
            hidden=hidden,
            norm_eps=spec.norm_eps,
            embedding=packed_weight(arrays, "embedding", vocab, hidden),
            head=packed_weight(arrays, "head" if "head.codes" in arrays else "embedding", vocab, hidden),
            final_norm=arrays["final_norm"],
            embedding_scale=spec.embedding_scale,
            logit_softcap=spec.logit_softcap,
            embedding_channels=arrays.get("embedding_channels"),
        )
        kinds = rope_kinds(spec)
        for i, layer in enumerate(spec.layers):
            rope = kinds.index(rope_kind(layer))
            packed, own = layer_weights(arrays, spec, i), f"layers.{i}."
            model.add_layer(
                layer.heads,
                layer.kv_heads,
                layer.head_dim,
                layer.window,
                i if layer.kv_owner is None else layer.kv_owner,
                spec.norm_eps,
                layer.score_scale,
                arrays[f"rope.{rope}.cos"],
                arrays[f"rope.{rope}.sin"],
                arrays[own + "attention_norm"],
                arrays[own + "mlp_norm"],
                packed["qkv"],
                packed["output"],
                packed["gate_up"],
                down_weights(arrays, spec, i),
                mlp=int(MLP_EPILOGUES[layer.mlp]),
                attention_softcap=layer.attention_softcap,
                qkv_clamp=layer.qkv_clamp,
                mlp_clamp=layer.mlp_clamp,
                sinks=arrays[own + "sinks"][: layer.heads] if layer.sinks else None,
                key_offset=arrays.get(own + "key_offset"),
                **{name: arrays[own + name] for name in optional_norms(layer)},
            )
        model.finish()
        return model
