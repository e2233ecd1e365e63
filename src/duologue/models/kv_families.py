"""What is known of families of models, as far as their KV goes: defaults, where windows lie, and which keep something else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duologue.errors import UnsupportedModelError

# What transformers takes where a file leaves a setting out, for families whose files do.
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    },
    "gemma3_text": {
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    },
    "gemma3n_text": {
        "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512,
        "num_kv_shared_layers": 15,
    },
    "cohere2": {"sliding_window": 4096},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "llama4_text": {
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192,
    },
    "llama": {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096},
    "mistral": {
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "sliding_window": 4096,
    },
    "olmo3": {"sliding_window": 4096},
    "qwen3": {"head_dim": 128},
}  # fmt: skip
# The last of so many layers is global, where neither a pattern nor types of layers are given.
PATTERNS = {
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "cohere2": 4,
    "gpt_oss": 2,
    "llama4_text": 4,
    "olmo3": 4,
}
WINDOW_ON_ALL = ("mistral", "mixtral", "phi3", "starcoder2")
WINDOW_ON_NONE = ("llama",)  # whatever the file says: transformers' Llama has no windows
_RECURRENT_FAMILIES = (
    "mamba", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba", "falcon_h1", "nemotron_h", "recurrent_gemma", "qwen3_next", "lfm2",
    "granitemoehybrid", "plamo2", "kimi_linear", "olmo_hybrid", "bailing_hybrid", "retnet", "xlstm",
)  # fmt: skip
_RECURRENT_SETTINGS = (
    "ssm_cfg", "ssm_state_size", "state_size", "mamba_d_state", "mamba_d_ssm", "mamba_num_heads", "linear_num_key_heads",
    "linear_attn_config", "hybrid_override_pattern", "attn_layer_period", "layers_block_type", "block_types", "conv_L_cache",
    "full_attn_idxs",
)  # fmt: skip
# Settings under which KV is something that is not counted here.
_UNKNOWN_KV = {
    "is_encoder_decoder": "an encoder with cross attention",
    "cross_attention_layers": "cross attention",
    "block_configs": "layers of different shapes",
    "use_cla": "KV shared between layers in another way",
    "index_head_dim": "an index of keys beside the KV",
    "attention_k_eq_v": "values that are the keys",
    "global_head_dim": "heads of another size in global layers",
    "sparse_attention_config": "attention to chosen blocks",
    "hybrid_layer_pattern": "heads of another shape in local layers",
    "compress_ratios": "KV that is compressed over positions",
}


def refuse_other_kv(config: Mapping[str, Any]) -> None:
    """Raises UnsupportedModelError naming a setting under which layers keep something else than keys and values of KV heads."""
    family = config.get("model_type")
    if isinstance(family, str) and family.startswith(_RECURRENT_FAMILIES):
        raise UnsupportedModelError(
            f"model_type {family!r} cannot be counted: some of its layers keep a state instead of KV"
        )
    for name in _RECURRENT_SETTINGS:
        if config.get(name):
            raise UnsupportedModelError(
                f"{name} is set, so some layers keep a state instead of KV, which cannot be counted"
            )
    kinds = config.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise UnsupportedModelError(
            "attn_type_list has layers with linear attention, which cannot be counted"
        )
    for name, what in _UNKNOWN_KV.items():
        if config.get(name):
            raise UnsupportedModelError(f"{name} is set, which means {what}, and that cannot be counted")
