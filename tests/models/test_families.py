from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import Checkpoint
from duologue.models.hf_checkpoint import read_hf_folder, spec_from_config
from duologue.models.random_model import random_weights
from duologue.models.spec import Mlp, ModelSpec
from tests.models.family_case import GEMMA2, GEMMA3, LLAMA3, MISTRAL, QWEN2, QWEN3, config, write_family

SPECS = [LLAMA3, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3]
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def assert_holds(checkpoint: Checkpoint, spec: ModelSpec, seed: int = 5) -> None:
    expected = random_weights(spec, seed)
    assert checkpoint.spec == spec
    assert checkpoint.weights.keys() == expected.keys()
    for name, values in checkpoint.weights.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("newer", [True, False], ids=["newer", "older"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.architecture)
def test_a_folder_gives_back_spec_and_weights_in_both_spellings(
    tmp_path: Path, spec: ModelSpec, newer: bool
) -> None:
    assert_holds(read_hf_folder(write_family(tmp_path / "m", spec, newer=newer)), spec)


@pytest.mark.parametrize("spec", [GEMMA2, GEMMA3], ids=lambda spec: spec.architecture)
def test_gemma_stores_every_norm_less_one(tmp_path: Path, spec: ModelSpec) -> None:
    folder = write_family(tmp_path / "m", spec)
    stored = safetensors.numpy.load_file(folder / "model.safetensors")
    norms = [name for name in stored if "norm" in name]
    assert len(norms) == len(spec.layers) * (6 if spec.architecture == "gemma3" else 4) + 1
    for name in norms:
        assert abs(stored[name].mean()) < 0.1, name  # around 0, and read as around 1
    weights = read_hf_folder(folder).weights
    assert all(abs(w.mean() - 1) < 0.1 for name, w in weights.items() if "norm" in name)


def test_published_configurations_are_described() -> None:
    """As Google publishes them: much is left to the defaults of the configuration class."""
    gemma3 = spec_from_config(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152},
        }
    )
    local, last = gemma3.layers[0], gemma3.layers[5]
    assert [layer.window for layer in gemma3.layers] == ([1024] * 5 + [0]) * 5 + [1024] * 4
    assert (local.rope_base, local.rope_factor) == (10000.0, 1.0)
    assert (last.rope_base, last.rope_factor) == (1000000.0, 8.0)
    assert (local.heads, local.kv_heads, local.head_dim, local.score_scale) == (8, 4, 256, 1 / 16)
    assert local.qk_norm
    assert local.post_norms
    assert local.mlp is Mlp.GATED_GELU
    assert (gemma3.vocab_size, gemma3.context_tokens, gemma3.norm_eps) == (262208, 131072, 1e-6)
    assert gemma3.tied_head
    assert gemma3.embedding_scale == 2560**0.5

    gemma2 = spec_from_config({"model_type": "gemma2"})
    assert [layer.window for layer in gemma2.layers] == [4096, 0] * 13
    assert (gemma2.layers[0].attention_softcap, gemma2.logit_softcap) == (50.0, 30.0)
    assert (gemma2.vocab_size, gemma2.context_tokens) == (256000, 8192)

    # Llama 3.2 1B, Qwen2.5 0.5B and Qwen3 0.6B, as published.
    llama3 = spec_from_config(
        {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "head_dim": 64,
            "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "vocab_size": 128256,
            "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1,
        }
    )  # fmt: skip
    divisors = llama3.layers[0].rope_divisors
    assert (divisors[0], divisors[-1], len(divisors)) == (1.0, 32.0, 32)
    assert 1.0 < divisors[16] < 32.0
    assert sorted(divisors) == list(divisors)

    qwen2 = spec_from_config(
        {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
            "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14, "num_hidden_layers": 24,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
            "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
        }
    )  # fmt: skip
    assert {(layer.window, layer.qkv_bias, layer.head_dim) for layer in qwen2.layers} == {(0, True, 64)}

    qwen3 = spec_from_config(
        {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
            "attention_bias": False, "head_dim": 128, "max_position_embeddings": 40960, "max_window_layers": 28,
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
            "use_sliding_window": False, "vocab_size": 151936,
        }
    )  # fmt: skip
    assert {(layer.window, layer.qk_norm, layer.head_dim) for layer in qwen3.layers} == {(0, True, 128)}

    mistral = spec_from_config({"model_type": "mistral"})
    assert {layer.window for layer in mistral.layers} == {4096}
    assert mistral.layers[0].kv_heads == 8


def test_a_null_cap_or_window_is_none_and_a_missing_one_the_default() -> None:
    plain = spec_from_config(
        config(GEMMA2) | {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    )
    assert (plain.layers[0].attention_softcap, plain.logit_softcap) == (0.0, 0.0)
    without = config(GEMMA2)
    del without["attn_logit_softcapping"], without["final_logit_softcapping"]
    assert spec_from_config(without) == GEMMA2
    assert spec_from_config(config(MISTRAL) | {"sliding_window": None}).layers[0].window == 0


def test_rope_by_kind_takes_what_one_spelling_leaves_out_from_the_other() -> None:
    settings = config(GEMMA3, newer=False) | {"rope_parameters": {LOCAL: {"rope_theta": 77.0}, GLOBAL: None}}
    spec = spec_from_config(settings)
    assert (spec.layers[0].rope_base, spec.layers[5].rope_base, spec.layers[5].rope_factor) == (
        77.0,
        1e6,
        8.0,
    )


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2"])
def test_linear_scaling_divides_positions(kind: str) -> None:
    settings = {"model_type": kind, "rope_theta": 5000.0}
    for scaling in ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4}):
        layer = spec_from_config(settings | {"rope_scaling": scaling}).layers[0]
        assert (layer.rope_base, layer.rope_factor) == (5000.0, 4.0)
    newer = {"rope_type": "linear", "factor": 4.0, "rope_theta": 7.0}
    layer = spec_from_config(settings | {"rope_parameters": newer}).layers[0]
    assert (layer.rope_base, layer.rope_factor) == (7.0, 4.0)


@pytest.mark.parametrize(
    ("decoder", "head"), [("language_model.model.", "language_model."), ("model.language_model.", "")]
)
def test_the_text_part_of_a_model_that_sees_is_read(tmp_path: Path, decoder: str, head: str) -> None:
    folder = write_family(tmp_path / "m", GEMMA3, tie_word_embeddings=False)
    stored = safetensors.numpy.load_file(folder / "model.safetensors")
    spec = spec_from_config(config(GEMMA3) | {"tie_word_embeddings": False})
    weights = random_weights(GEMMA3, 5)
    weights["head"] = random_weights(spec, 6)["head"]
    renamed = {decoder + name.removeprefix("model."): values for name, values in stored.items()}
    renamed[f"{head}lm_head.weight"] = weights["head"]
    vision = decoder.replace("language_model.model.", "").replace("language_model.", "")
    renamed[f"{vision}vision_tower.embeddings.weight"] = np.zeros((4, 4), np.float32)
    renamed[f"{vision}multi_modal_projector.norm.weight"] = np.zeros(4, np.float32)
    safetensors.numpy.save_file(renamed, folder / "model.safetensors")
    text = json.loads((folder / "config.json").read_text())
    nested = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    (folder / "config.json").write_text(
        json.dumps(nested | {"text_config": text, "tie_word_embeddings": False})
    )
    checkpoint = read_hf_folder(folder)
    assert checkpoint.spec == spec
    for name, values in weights.items():
        np.testing.assert_allclose(checkpoint.weights[name], values, rtol=0, atol=1e-6, err_msg=name)

    renamed[f"{vision}another_tower.weight"] = renamed.pop(f"{vision}vision_tower.embeddings.weight")
    safetensors.numpy.save_file(renamed, folder / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"another_tower\.weight has no place"):
        read_hf_folder(folder)


@pytest.mark.parametrize(
    ("spec", "changes", "named"),
    [
        (MISTRAL, {"sliding_window": 0}, "sliding_window = 0 .*at least 1 position, null means none"),
        (MISTRAL, {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (MISTRAL, {"layer_types": [LOCAL, GLOBAL]}, "layer_types .*mistral models, whose layers are all alike"),
        (MISTRAL, {"architectures": ["MistralModel"]}, "describes MistralModel"),
        (MISTRAL, {"rope_parameters": {LOCAL: {}}}, r"RoPE by layer type \(rope_parameters"),
        (GEMMA2, {"sliding_window": -1}, "sliding_window = -1"),
        (GEMMA2, {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
        (GEMMA2, {"hidden_activation": None}, "hidden_activation = None"),
        (GEMMA2, {"attention_bias": True}, "attention_bias = True"),
        (GEMMA2, {"attn_logit_softcapping": 0}, "attn_logit_softcapping = 0.*positive, or null for none"),
        (GEMMA2, {"layer_types": [LOCAL, "chunked_attention"] * 2}, r"layer_types\[1\] = 'chunked_attention'"),
        (GEMMA3, {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (GEMMA3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        (GEMMA3, {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern = 0.*at least 1"),
        (QWEN2, {"use_sliding_window": False}, "layer_types .*use_sliding_window is false"),
        (QWEN2, {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (QWEN3, {"attention_bias": True}, "attention_bias = True"),
        (QWEN3, {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "type 'yarn' .*default, linear, llama3 are"),
        (GEMMA3, {"rope_parameters": {"rope_theta": 1.0}}, r"rope_parameters\.rope_theta"),
        (GEMMA3, {"rope_parameters": {GLOBAL: {"rope_type": "yarn"}}}, r"type 'yarn' \(rope_parameters.full_attention"),
        (GEMMA3, {"rope_scaling": {"rope_type": "dynamic"}}, r"type 'dynamic' \(rope_scaling"),
        (GEMMA3, {"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)  # fmt: skip
def test_what_is_not_run_is_refused_by_name(
    tmp_path: Path, spec: ModelSpec, changes: dict[str, Any], named: str
) -> None:
    folder = write_family(tmp_path / "m", spec, **changes)
    with pytest.raises(UnsupportedModelError, match=named) as raised:
        read_hf_folder(folder)
    assert str(folder) in str(raised.value)
    assert "choose another model" in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "changes", "named"),
    [
        (GEMMA2, {"layer_types": [LOCAL]}, "layer_types has 1 entries, but num_hidden_layers is 4; there must be one"),
        (GEMMA2, {"layer_types": LOCAL}, "layer_types is 'sliding_attention', not a list"),
        (GEMMA2, {"sliding_window": None}, "sliding_window is null, but there are sliding_attention layers"),
        (GEMMA2, {"sliding_window": 1.5}, "sliding_window is 1.5, not a whole number"),
        (GEMMA2, {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0.0, but must be positive"),
        (GEMMA2, {"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes', not true or false"),
        (GEMMA2, {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, more than"),
        (GEMMA3, {"rope_parameters": {GLOBAL: 4}}, "full_attention is 4, not an object"),
        (GEMMA3, {"rope_scaling": {"rope_type": "linear"}, "rope_parameters": {}}, "of type 'linear' but has no factor"),
        (GEMMA3, {"final_logit_softcapping": float("nan")}, "final_logit_softcapping is nan, not a number"),
        (GEMMA3, {"vocab_size": 640}, r"tensor model\.embed_tokens\.weight has shape \[320, 64\]"),
    ],
)  # fmt: skip
def test_contradictions_are_named(
    tmp_path: Path, spec: ModelSpec, changes: dict[str, Any], named: str
) -> None:
    folder = write_family(tmp_path / "m", spec, **changes)
    with pytest.raises(ModelLoadError, match=named) as raised:
        read_hf_folder(folder)
    assert not isinstance(raised.value, UnsupportedModelError)
    assert "fetch or save the folder again" in str(raised.value)


def test_a_configuration_of_another_kind_lists_those_that_are_run() -> None:
    known = "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Gemma2ForCausalLM"
    for settings in ({"model_type": "smollm3"}, {"model_type": ["llama"]}, {}):
        with pytest.raises(UnsupportedModelError, match=re.escape(known)):
            spec_from_config(settings)
