"""Gemma 2 and the text part of Gemma 3.

Norms before and after attention and MLP, embeddings multiplied by sqrt(hidden), and norm weights stored less 1. Gemma 2 bounds
scores and logits and has a window on every other layer; Gemma 3 has QK-norm instead, five local layers to a global one, and
RoPE by kind of layer.
"""

from __future__ import annotations

from duologue.models.families.family import LAYER_NAMES, QK_NORM_NAMES, Family
from duologue.models.hf_config import HfConfig, Rope
from duologue.models.spec import LayerSpec, Mlp, ModelSpec

_GEMMA_NAMES = {
    **LAYER_NAMES,
    "attention_post_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_post_norm": "post_feedforward_layernorm.weight",
}


def gemma2_spec(config: HfConfig) -> ModelSpec:
    """The defaults of missing settings are those of transformers' Gemma2Config."""
    local = config.local_layers(config.layers(26), 2)
    return _spec(
        config,
        "gemma2",
        local,
        ropes=(config.rope(config.count("head_dim", 256)),) * 2,
        attention_softcap=config.bound("attn_logit_softcapping", 50.0),
        logit_softcap=config.bound("final_logit_softcapping", 30.0),
        vocab_size=256_000,
        context_tokens=8192,
        qk_norm=False,
    )


def gemma3_text_spec(config: HfConfig) -> ModelSpec:
    """The defaults of missing settings are those of transformers' Gemma3TextConfig."""
    # Runners disagree on what it means for Gemma 3: transformers ignores it.
    config.require("attn_logit_softcapping", None)
    pattern = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    local = config.local_layers(config.layers(26), pattern)
    return _spec(
        config,
        "gemma3",
        local,
        ropes=config.rope_by_kind(1_000_000.0, 10_000.0),
        attention_softcap=0.0,
        logit_softcap=config.bound("final_logit_softcapping"),
        vocab_size=262_208,
        context_tokens=131_072,
        qk_norm=True,
    )


def gemma3_spec(config: HfConfig) -> ModelSpec:
    """The text part of a model that also sees images: its `text_config`."""
    text = config.nested("text_config")
    text.require("model_type", "gemma3_text")
    text.require("quantization_config", None)
    tied = config.flag("tie_word_embeddings", text.flag("tie_word_embeddings", True))
    return gemma3_text_spec(HfConfig({**text.values, "tie_word_embeddings": tied}))


def _spec(
    config: HfConfig,
    architecture: str,
    local: list[bool],
    *,
    ropes: tuple[Rope, Rope],
    attention_softcap: float,
    logit_softcap: float,
    vocab_size: int,
    context_tokens: int,
    qk_norm: bool,
) -> ModelSpec:
    config.require("attention_bias", False)
    config.require("hidden_activation", "gelu_pytorch_tanh")
    config.require("use_bidirectional_attention", None, False)
    hidden = config.integer("hidden_size", 2304)
    layers = []
    for is_local, window in zip(local, config.windows(local, 4096), strict=True):
        rope = ropes[0 if is_local else 1]
        layers.append(
            LayerSpec(
                heads=config.count("num_attention_heads", 8),
                kv_heads=config.integer("num_key_value_heads", 4),
                head_dim=config.integer("head_dim", 256),
                mlp_size=config.integer("intermediate_size", 9216),
                rope_base=rope.base,
                rope_factor=rope.factor,
                rope_divisors=rope.divisors,
                window=window,
                softmax_scale=config.positive("query_pre_attn_scalar", 256) ** -0.5,
                attention_softcap=attention_softcap,
                qk_norm=qk_norm,
                post_norms=True,
                mlp=Mlp.GATED_GELU,
            )
        )
    return ModelSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size", vocab_size),
        hidden_size=hidden,
        context_tokens=config.integer("max_position_embeddings", context_tokens),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=config.flag("tie_word_embeddings", True),
        layers=tuple(layers),
        embedding_scale=max(hidden, 1) ** 0.5,
        logit_softcap=logit_softcap,
    )


GEMMA2 = Family("Gemma2ForCausalLM", gemma2_spec, _GEMMA_NAMES, norm_offset=1.0)
GEMMA3_TEXT = Family(
    "Gemma3ForCausalLM", gemma3_text_spec, {**_GEMMA_NAMES, **QK_NORM_NAMES}, norm_offset=1.0
)
GEMMA3 = Family(
    "Gemma3ForConditionalGeneration",
    gemma3_spec,
    GEMMA3_TEXT.layer_names,
    norm_offset=1.0,
    prefixes=(("language_model.model.", "language_model."), ("model.language_model.", "")),
    ignored=(
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ),
)
