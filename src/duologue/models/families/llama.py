"""Llama, and what differs from it in little: Mistral (a window on all layers), Qwen2 (biases) and Qwen3 (QK-norm)."""

from __future__ import annotations

from duologue.errors import UnsupportedModelError
from duologue.models.families.family import LAYER_NAMES, QK_NORM_NAMES, Family
from duologue.models.hf_config import CONFIG_FILE, GLOBAL, LOCAL, HfConfig
from duologue.models.spec import LayerSpec, ModelSpec

_BIAS_NAMES = {f"{name}_bias": f"self_attn.{name}_proj.bias" for name in ("q", "k", "v")}


def llama_spec(config: HfConfig) -> ModelSpec:
    """The defaults of missing settings are those of transformers' LlamaConfig."""
    config.require("attention_bias", False)
    config.require("mlp_bias", False)
    return _spec(
        config,
        "llama",
        mlp_size=11008,
        context_tokens=2048,
        windows=_alike(config, "llama", 0),
    )


def mistral_spec(config: HfConfig) -> ModelSpec:
    """As `llama_spec`, with the defaults of MistralConfig; `sliding_window` null means none."""
    return _spec(
        config,
        "mistral",
        kv_heads=8,
        mlp_size=14336,
        context_tokens=131072,
        windows=_alike(config, "mistral", config.window(4096) or 0),
    )


def qwen2_spec(config: HfConfig) -> ModelSpec:
    """As `llama_spec`, with the defaults of Qwen2Config: queries, keys and values always have biases."""
    return _spec(
        config,
        "qwen2",
        kv_heads=32,
        mlp_size=22016,
        context_tokens=32768,
        windows=_qwen_windows(config),
        vocab_size=151_936,
        qkv_bias=True,
    )


def qwen3_spec(config: HfConfig) -> ModelSpec:
    """As `llama_spec`, with the defaults of Qwen3Config: heads of 128 whatever the width, normed before RoPE."""
    config.require("attention_bias", False)
    return _spec(
        config,
        "qwen3",
        kv_heads=32,
        mlp_size=22016,
        context_tokens=32768,
        windows=_qwen_windows(config),
        vocab_size=151_936,
        head_dim=128,
        qk_norm=True,
    )


def _alike(config: HfConfig, architecture: str, window: int) -> list[int]:
    # transformers runs one kind of layer whatever such a list says; one that says something else belongs to another model.
    count, types = config.layers(32), config.values.get("layer_types")
    if types is not None and config.layer_list("layer_types", count) != [LOCAL if window else GLOBAL] * count:
        raise UnsupportedModelError(
            f"layer_types in {CONFIG_FILE} is not supported for {architecture} models, whose layers are all alike"
        )
    return [window] * count


def _qwen_windows(config: HfConfig) -> list[int]:
    """With `use_sliding_window`, layers from `max_window_layers` on have a window, unless `layer_types` says which."""
    count = config.layers(32)
    uses = config.flag("use_sliding_window", False) and config.window(4096) is not None
    first = config.integer("max_window_layers", 28) if uses else count
    if config.values.get("layer_types") is None:
        local = [i >= first for i in range(count)]
    else:
        local = config.local_layers(count, 1)
        if any(local) and not uses:
            raise UnsupportedModelError(
                f"layer_types in {CONFIG_FILE} names {LOCAL} layers, but use_sliding_window is false, which is not supported"
            )
    return config.windows(local, 4096)


def _spec(
    config: HfConfig,
    architecture: str,
    *,
    mlp_size: int,
    context_tokens: int,
    windows: list[int],
    kv_heads: int | None = None,
    vocab_size: int = 32_000,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    qk_norm: bool = False,
) -> ModelSpec:
    """The sizes are what a missing setting means; without `kv_heads` and `head_dim` that follows from the heads."""
    config.require("hidden_act", "silu")
    hidden, heads = config.integer("hidden_size", 4096), config.count("num_attention_heads", 32)
    head_dim = config.count("head_dim", head_dim or max(hidden // heads, 1))
    rope = config.rope(head_dim)
    return ModelSpec(
        architecture=architecture,
        vocab_size=config.integer("vocab_size", vocab_size),
        hidden_size=hidden,
        context_tokens=config.integer("max_position_embeddings", context_tokens),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=config.flag("tie_word_embeddings", False),
        layers=tuple(
            LayerSpec(
                heads=heads,
                kv_heads=config.integer("num_key_value_heads", kv_heads or heads),
                head_dim=head_dim,
                mlp_size=config.integer("intermediate_size", mlp_size),
                rope_base=rope.base,
                rope_factor=rope.factor,
                rope_divisors=rope.divisors,
                window=window,
                qkv_bias=qkv_bias,
                qk_norm=qk_norm,
            )
            for window in windows
        ),
    )


LLAMA = Family("LlamaForCausalLM", llama_spec, LAYER_NAMES)
MISTRAL = Family("MistralForCausalLM", mistral_spec, LAYER_NAMES)
QWEN2 = Family("Qwen2ForCausalLM", qwen2_spec, {**LAYER_NAMES, **_BIAS_NAMES})
QWEN3 = Family("Qwen3ForCausalLM", qwen3_spec, {**LAYER_NAMES, **QK_NORM_NAMES})
