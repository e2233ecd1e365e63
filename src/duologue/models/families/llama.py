"""Llama, and Mistral, which is Llama with one window on all layers."""

from __future__ import annotations

from duologue.errors import UnsupportedModelError
from duologue.models.families.family import LAYER_NAMES, Family
from duologue.models.hf_config import CONFIG_FILE, GLOBAL, LOCAL, HfConfig
from duologue.models.spec import LayerSpec, ModelSpec


def llama_spec(config: HfConfig) -> ModelSpec:
    """The defaults of missing settings are those of transformers' LlamaConfig."""
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    heads = config.count("num_attention_heads", 32)
    return _spec(
        config,
        "llama",
        kv_heads=config.integer("num_key_value_heads", heads),
        mlp_size=config.integer("intermediate_size", 11008),
        context_tokens=config.integer("max_position_embeddings", 2048),
        window=0,
    )


def mistral_spec(config: HfConfig) -> ModelSpec:
    """As `llama_spec`, with the defaults of MistralConfig; `sliding_window` null means none."""
    return _spec(
        config,
        "mistral",
        kv_heads=config.integer("num_key_value_heads", 8),
        mlp_size=config.integer("intermediate_size", 14336),
        context_tokens=config.integer("max_position_embeddings", 131072),
        window=config.window(4096) or 0,
    )


def _spec(
    config: HfConfig, architecture: str, *, kv_heads: int, mlp_size: int, context_tokens: int, window: int
) -> ModelSpec:
    config.require("hidden_act", "silu")
    hidden, heads = config.integer("hidden_size", 4096), config.count("num_attention_heads", 32)
    count, rope = config.layers(32), config.rope()
    # transformers runs one kind of layer whatever such a list says; one that says something else belongs to another model.
    types = config.values.get("layer_types")
    if types is not None and config.layer_list("layer_types", count) != [LOCAL if window else GLOBAL] * count:
        raise UnsupportedModelError(
            f"layer_types in {CONFIG_FILE} is not supported for {architecture} models, whose layers are all alike"
        )
    layer = LayerSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=config.integer("head_dim", hidden // heads),
        mlp_size=mlp_size,
        rope_base=rope.base,
        rope_factor=rope.factor,
        window=window,
    )
    return ModelSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size", 32000),
        hidden_size=hidden,
        context_tokens=context_tokens,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=config.flag("tie_word_embeddings", False),
        layers=(layer,) * count,
    )


LLAMA = Family("LlamaForCausalLM", llama_spec, LAYER_NAMES)
MISTRAL = Family("MistralForCausalLM", mistral_spec, LAYER_NAMES)
