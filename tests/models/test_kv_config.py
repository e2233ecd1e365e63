"""KV of other families from their configurations, as these are published (what does not matter to KV left out)."""

from __future__ import annotations

from typing import Any

import pytest

from duologue.cache.resident import DialogueShape
from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.duologue_config import duologue_config
from duologue.models.hf_checkpoint import spec_from_config
from duologue.models.kv_accounting import KvModel
from duologue.models.kv_config import kv_model_of_config
from duologue.models.kv_waterfall import waterfall
from duologue.models.presets import preset

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
UNKNOWN = {**LLAMA_8B, "model_type": "unheard_of"}
QWEN25_7B = {
    "model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584,
    "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
    "hidden_size": 4096, "sliding_window": None, "max_window_layers": 94, "num_experts": 128,
}  # fmt: skip
PHI3_MINI = {
    "model_type": "phi3", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 3072,
    "sliding_window": 2047,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "hidden_size": 2880, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
COMMAND_R7B = {
    "model_type": "cohere2", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "sliding_window": 4096, "sliding_window_pattern": 4,
}  # fmt: skip
LLAMA4_SCOUT = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_size": 5120, "attention_chunk_size": 8192, "no_rope_layers": [],
    },
}  # fmt: skip
GEMMA3_4B = {
    "model_type": "gemma3",
    "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 34, "hidden_size": 2560, "sliding_window": 1024},
    "vision_config": {"num_hidden_layers": 27, "num_attention_heads": 16},
}  # fmt: skip
GEMMA3N_E4B = {
    "model_type": "gemma3n",
    "text_config": {
        "model_type": "gemma3n_text", "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "sliding_window": 512, "num_kv_shared_layers": 15, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    },
}  # fmt: skip
GEMMA3N_DEFAULTS = {"model_type": "gemma3n_text", "num_hidden_layers": 35}
MISTRAL_V01 = {
    "model_type": "mistral", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "sliding_window": 4096,
}  # fmt: skip
QWEN2_WINDOWS = {**QWEN25_7B, "use_sliding_window": True, "max_window_layers": 20, "sliding_window": 4096}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
FALCON_7B = {
    "model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True,
    "new_decoder_architecture": False,
}  # fmt: skip

# Bytes in fp16 that a token adds with every layer global and its own KV; layers with a window, and the window.
MODELS = [
    (LLAMA_8B, 32 * 4096, 0, 0),
    (QWEN25_7B, 28 * 2048, 0, 0),
    (QWEN3_MOE, 94 * 2048, 0, 0),
    (PHI3_MINI, 32 * 12288, 32, 2047),
    (GPT_OSS_20B, 24 * 2048, 12, 128),
    (COMMAND_R7B, 32 * 4096, 24, 4096),
    (LLAMA4_SCOUT, 48 * 4096, 36, 8192),
    (GEMMA3_4B, 34 * 4096, 29, 1024),
    (GEMMA3N_E4B, 35 * 2048, 28, 512),
    (MISTRAL_V01, 32 * 4096, 32, 4096),
    (QWEN2_WINDOWS, 28 * 2048, 8, 4096),
    (DEEPSEEK_V3, 61 * 1152, 0, 0),
    (GPT2, 12 * 3072, 0, 0),
    (FALCON_7B, 32 * 256, 0, 0),
]


@pytest.mark.parametrize(
    ("config", "token_bytes", "local", "window"), MODELS, ids=[m[0]["model_type"] for m in MODELS]
)
def test_published_models(config: dict[str, Any], token_bytes: int, local: int, window: int) -> None:
    model = kv_model_of_config(config, "m")
    steps = {step.key: step.total_bytes for step in waterfall(model, DialogueShape(1)).steps}
    assert steps["kv_heads"] == token_bytes
    assert [layer.window for layer in model.layers if layer.window] == [window] * local


RUN_HERE: list[dict[str, Any]] = [
    {"model_type": "llama", "num_hidden_layers": 4},
    {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512},
    {"model_type": "mistral"},
    {"model_type": "mistral", "sliding_window": None, "head_dim": 160, "hidden_size": 5120},
    {"model_type": "gemma2"},
    {"model_type": "gemma2", "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8},
    {"model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024},
    {"model_type": "gemma3_text", "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1},
    {"model_type": "gemma3_text", "sliding_window_pattern": 3},
    {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": 48}},
    # Odd settings, which another reader could take otherwise.
    {"model_type": "llama", "num_hidden_layers": None, "num_attention_heads": None},
    {"model_type": "llama", "sliding_window": 512, "use_sliding_window": True},
    {"model_type": "mistral", "use_sliding_window": False, "sliding_window": 512},
    {"model_type": "mistral", "sliding_window_pattern": 2, "attention_chunk_size": 64},
    {"model_type": "gemma2", "sliding_window_pattern": 4},
    {"model_type": "gemma2", "head_dim": None, "num_key_value_heads": None},
    {"model_type": "gemma3_text", "use_sliding_window": False},
    {"model_type": "gemma3_text", "attention_chunk_size": 8192},
    {"model_type": "gemma3_text", "_sliding_window_pattern": 4, "num_kv_shared_layers": 8},
]  # fmt: skip


@pytest.mark.parametrize("config", RUN_HERE, ids=lambda config: str(config["model_type"]))
def test_families_that_the_engine_runs_are_counted_as_it_reads_them(config: dict[str, Any]) -> None:
    assert kv_model_of_config(config, "m").layers == KvModel.of_spec("m", spec_from_config(config)).layers


@pytest.mark.parametrize(
    "change",
    [{"quantization_config": {"bits": 4}}, {"architectures": ["LlamaForSequenceClassification"]}],
    ids=["quantised", "another head"],
)
@pytest.mark.parametrize("config", RUN_HERE, ids=lambda config: str(config["model_type"]))
def test_what_does_not_matter_to_kv_changes_only_what_is_said(
    config: dict[str, Any], change: dict[str, Any]
) -> None:
    plain, model = kv_model_of_config(config, "m"), kv_model_of_config({**config, **change}, "m")
    assert model.layers == plain.layers
    assert [text for text in model.assumptions if "the engine does not run it" in text]
    assert set(plain.assumptions) < set(model.assumptions)


def test_what_the_engine_refuses_of_its_own_families_is_counted_and_said() -> None:
    refused = {**GEMMA3_4B["text_config"], "use_bidirectional_attention": True}  # type: ignore[dict-item]
    model = kv_model_of_config(refused, "m")
    assert model.layers == kv_model_of_config(GEMMA3_4B, "m").layers
    assert "use_bidirectional_attention = True" in model.assumptions[0]


def test_our_own_architecture_is_refused_as_the_engine_refuses_it() -> None:
    config = {**duologue_config(preset("1m")), "hidden_act": "unheard_of"}
    with pytest.raises(UnsupportedModelError, match="unheard_of"):
        kv_model_of_config(config, "m")


def test_where_windows_lie() -> None:
    def globals_of(config: dict[str, Any]) -> list[int]:
        return [i for i, layer in enumerate(kv_model_of_config(config, "m").layers) if not layer.window]

    assert globals_of(GEMMA3_4B) == [5, 11, 17, 23, 29]
    assert globals_of(LLAMA4_SCOUT) == list(range(3, 48, 4))
    assert globals_of(QWEN2_WINDOWS) == list(range(20))
    assert globals_of({"model_type": "gemma2"}) == list(range(1, 26, 2))
    scout = {**LLAMA4_SCOUT["text_config"], "no_rope_layers": [1, 0] * 24}  # type: ignore[dict-item]
    assert globals_of(scout) == list(range(1, 48, 2))


def test_the_last_layers_of_gemma_3n_share() -> None:
    model = kv_model_of_config(GEMMA3N_E4B, "m")
    owners = [layer.owner for layer in model.layers]
    assert owners[:20] == [None] * 20
    assert {owners[i] for i in range(20, 35) if model.layers[i].window} == {18}
    assert {owners[i] for i in range(20, 35) if not model.layers[i].window} == {19}


def test_a_latent_is_compared_with_heads_that_keep_keys_and_values() -> None:
    steps = {
        s.key: s.total_bytes for s in waterfall(kv_model_of_config(DEEPSEEK_V3, "m"), DialogueShape(1)).steps
    }
    assert steps["multi_head"] == 61 * 128 * (192 + 128) * 2
    assert steps["grouped"] == 61 * 8 * (192 + 128) * 2
    assert steps["int8"] == 61 * (576 + 8)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (UNKNOWN, "head_dim is 128"),
        (GPT2, "num_key_value_heads is 12"),
        (GEMMA3_4B, "only text_config is counted"),
        (GEMMA3N_DEFAULTS, "num_key_value_heads is 2: the default of gemma3n_text"),
        (GEMMA3N_DEFAULTS, "one layer in 5 is global"),
        (LLAMA4_SCOUT, "chunks of 8192"),
        ({**UNKNOWN, "sliding_window": 512}, "every layer has the window"),
    ],
)
def test_what_is_assumed_is_said(config: dict[str, Any], says: str) -> None:
    assert any(says in text for text in kv_model_of_config(config, "m").assumptions)


def test_a_config_that_says_all_assumes_nothing() -> None:
    assert kv_model_of_config(GPT_OSS_20B, "m").assumptions == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "mamba2"}, "model_type 'mamba2'"),
        ({"model_type": "qwen3_next"}, "model_type 'qwen3_next'"),
        ({"mamba_d_state": 128}, "mamba_d_state"),
        ({"attn_type_list": [1, 0]}, "attn_type_list"),
        ({"layer_types": ["linear_attention"] * 32}, r"layer_types\[0\] = 'linear_attention'"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"cross_attention_layers": [3, 8]}, "cross_attention_layers"),
        ({"block_configs": [{}]}, "block_configs"),
        ({"kv_lora_rank": 512, "index_head_dim": 128}, "index_head_dim"),
        ({"model_type": "exaone4", "sliding_window": 4096, "sliding_window_pattern": "LLLG"}, "sliding_window_pattern = 'LLLG'"),
        ({"num_key_value_heads": 5}, "heads 32 is not a multiple of kv_heads 5"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused_by_name(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        kv_model_of_config({**UNKNOWN, **change}, "m")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"model_type": "x", "num_attention_heads": None}, "num_attention_heads is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": "32"}, "num_attention_heads is '32'"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": True}, "head_dim is True"),
        ({"hidden_size": 4100}, "hidden_size 4100 is not a multiple"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
        ({"num_key_value_heads": [8, 8]}, "num_key_value_heads has 2 entries for 32 layers"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 32 layers"),
        ({"layer_types": ["sliding_attention"] * 32, "sliding_window": None}, "no sliding_window"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"num_kv_shared_layers": 32}, "no earlier layer"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelLoadError, match=says):
        kv_model_of_config({**UNKNOWN, **change}, "m")
