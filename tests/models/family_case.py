"""Tiny random models of each family, and the configurations that describe them in both spellings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duologue.models.random_model import random_spec, random_weights, write_folder
from duologue.models.rope import llama3_divisors
from duologue.models.spec import Mlp, ModelSpec

MISTRAL = random_spec(architecture="mistral", kv_heads=2, windows=[24, 24], rope_base=50000.0)
QWEN2 = random_spec(
    architecture="qwen2",
    layers=3,
    kv_heads=2,
    windows=[0, 24, 24],
    rope_base=1e6,
    tied_head=True,
    qkv_bias=True,
)
QWEN3 = random_spec(architecture="qwen3", kv_heads=2, head_dim=32, rope_base=1e6, qk_norm=True)
LLAMA3_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
"""Pairs of heads of 32 that stay, are slowed down, and in between."""
LLAMA3 = random_spec(
    kv_heads=2, head_dim=32, rope_base=5e5, rope_divisors=llama3_divisors(5e5, 32, 8.0, 1.0, 4.0, 128.0)
)
GEMMA2 = random_spec(
    architecture="gemma2", layers=4, kv_heads=2, head_dim=32, windows=[24, 0, 24, 0], tied_head=True,
    softmax_scale=24**-0.5, attention_softcap=50.0, logit_softcap=30.0, post_norms=True, mlp_kind=Mlp.GATED_GELU,
    embedding_scale=64**0.5,
)  # fmt: skip
GEMMA3 = random_spec(
    architecture="gemma3", layers=7, kv_heads=1, head_dim=32, windows=[24] * 5 + [0, 24], tied_head=True,
    rope_base=1e6, local_rope_base=1e4, rope_factor=8.0, softmax_scale=24**-0.5, qk_norm=True, post_norms=True,
    mlp_kind=Mlp.GATED_GELU, embedding_scale=64**0.5,
)  # fmt: skip
_LIKE_LLAMA = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip
_TYPES = {True: "sliding_attention", False: "full_attention"}


def config(spec: ModelSpec, *, newer: bool = True) -> dict[str, Any]:
    """The `config.json` of one of the specs above, as transformers 5 or 4 spells it."""
    layer, last = spec.layers[0], spec.layers[-2]  # local, and for Gemma 3 global
    common = {
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "intermediate_size": layer.mlp_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_tokens,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_head,
        "sliding_window": layer.window or None,
    }
    if spec.architecture in _LIKE_LLAMA:
        rope: dict[str, Any] = {"rope_theta": layer.rope_base}
        scaling = LLAMA3_SCALING if layer.rope_divisors else {"rope_type": "default"}
        common |= {"rope_parameters": {**scaling, **rope}} if newer else {**rope, "rope_scaling": scaling}
        local = [other.window > 0 for other in spec.layers]
        if spec.architecture == "qwen2":
            common |= {
                "use_sliding_window": any(local),
                "max_window_layers": local.index(True),
                "head_dim": ...,
            }
            common["sliding_window"] = max(other.window for other in spec.layers)
            if newer:
                common["layer_types"] = [_TYPES[is_local] for is_local in local]
        return {
            "architectures": [_LIKE_LLAMA[spec.architecture]],
            "model_type": spec.architecture,
            "hidden_act": "silu",
        } | {name: value for name, value in common.items() if value is not ...}
    common |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 24, "attention_bias": False}
    common["final_logit_softcapping"] = spec.logit_softcap or None
    common["attn_logit_softcapping"] = layer.attention_softcap or None
    if newer:
        common["layer_types"] = [_TYPES[layer.window > 0] for layer in spec.layers]
    if spec.architecture == "gemma2":
        common["rope_theta"] = layer.rope_base
        return {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"} | common
    scaling = {"rope_type": "linear", "factor": last.rope_factor}
    if newer:
        common["rope_parameters"] = {
            "full_attention": {"rope_theta": last.rope_base, **scaling},
            "sliding_attention": {"rope_theta": layer.rope_base, "rope_type": "default"},
        }
    else:
        common |= {"rope_theta": last.rope_base, "rope_local_base_freq": layer.rope_base}
        common |= {"rope_scaling": scaling, "sliding_window_pattern": 6}
    return {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"} | common


def write_family(folder: Path, spec: ModelSpec, *, newer: bool = True, seed: int = 5, **changes: Any) -> Path:
    """Writes a folder without a tokenizer; `changes` replace settings, ... (an ellipsis) leaves one out."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {k: v for k, v in {**config(spec, newer=newer), **changes}.items() if v is not ...}
    write_folder(folder, settings, random_weights(spec, seed))
    return folder
