"""What tells one family of Hugging Face models from another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from duologue.models.hf_config import HfConfig
from duologue.models.spec import ModelSpec

NAMES: Mapping[str, str] = {"embedding": "embed_tokens.weight", "final_norm": "norm.weight"}
HEAD = "lm_head.weight"
LAYER_NAMES: Mapping[str, str] = {
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
"""Names that Llama began and most families share."""
QK_NORM_NAMES: Mapping[str, str] = {"q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight"}


@dataclass(frozen=True)
class Family:
    """`spec` makes the spec of a configuration; it raises as HfConfig's methods and ModelSpec do.

    `layer_names` are the names of a layer's tensors by their canonical ones. Norm weights are stored less `norm_offset`.
    `prefixes` are those that a file may have in front of the decoder's names and of the head's; tensors whose names begin with one
    of `ignored` are no part of the decoder.
    """

    architecture: str
    spec: Callable[[HfConfig], ModelSpec]
    layer_names: Mapping[str, str]
    norm_offset: float = 0.0
    prefixes: tuple[tuple[str, str], ...] = (("model.", ""),)
    ignored: tuple[str, ...] = ()

    def prefix(self, found: Collection[str]) -> tuple[str, str]:
        """The one of `prefixes` that a file with these tensors has; the first when it has none."""
        for decoder, head in self.prefixes:
            if decoder + NAMES["embedding"] in found:
                return decoder, head
        return self.prefixes[0]

    def source_name(self, name: str, prefix: tuple[str, str] | None = None) -> str:
        """The name in a safetensors file of a canonical weight name."""
        decoder, head = prefix or self.prefixes[0]
        if name == "head":
            return head + HEAD
        if not name.startswith("layers."):
            return decoder + NAMES[name]
        _, index, part = name.split(".")
        return f"{decoder}layers.{index}.{self.layer_names[part]}"
