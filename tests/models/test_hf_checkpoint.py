from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.families.llama import LLAMA
from duologue.models.hf_checkpoint import read_hf_folder
from duologue.models.random_model import CHAT_TEMPLATE, Dtype, random_spec, random_weights, write_random_llama
from duologue.models.safetensors_file import write_safetensors

SHAPE = {"kv_heads": 2, "head_dim": 32, "layers": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_random_llama(tmp_path / "tiny", seed=5, **SHAPE)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not ...}))


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_weights_come_back_to_the_precision_they_are_stored_in(
    tmp_path: Path, dtype: Dtype, error: float
) -> None:
    checkpoint = read_hf_folder(write_random_llama(tmp_path / "tiny", seed=5, dtype=dtype, **SHAPE))
    spec = random_spec(**SHAPE)
    assert checkpoint.spec == spec
    stored = random_weights(spec, 5)
    assert checkpoint.weights.keys() == stored.keys()
    for name, values in checkpoint.weights.items():
        assert values.dtype == np.float32
        assert (np.abs(values - stored[name]) <= np.abs(stored[name]) * error + 2.0**-24).all(), name


def test_the_written_file_is_one_that_the_safetensors_package_reads(folder: Path) -> None:
    with safetensors.safe_open(folder / "model.safetensors", "numpy") as file:
        assert np.array_equal(
            file.get_tensor("model.norm.weight"), random_weights(random_spec(**SHAPE), 5)["final_norm"]
        )


def test_a_tied_head_may_be_stored_or_not(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "tiny", tied_head=True)
    assert read_hf_folder(folder).spec.tied_head
    untied = write_random_llama(tmp_path / "other", tied_head=False)
    change_config(untied, tie_word_embeddings=True)
    assert "head" not in read_hf_folder(untied).weights


def test_missing_keys_have_the_defaults_of_transformers(tmp_path: Path) -> None:
    folder = write_random_llama(tmp_path / "tiny", kv_heads=4, rope_base=10000.0)
    absent = ("head_dim", "num_key_value_heads", "rope_theta", "attention_bias", "mlp_bias", "hidden_act")
    change_config(folder, **dict.fromkeys((*absent, "tie_word_embeddings", "rms_norm_eps"), ...))
    spec = read_hf_folder(folder).spec
    layer = spec.layers[0]
    assert (layer.kv_heads, layer.head_dim, layer.rope_base) == (4, 16, 10000.0)
    assert spec.norm_eps == 1e-6
    assert not spec.tied_head


def test_rope_theta_may_be_in_rope_parameters(folder: Path) -> None:
    change_config(folder, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 123.0})
    assert read_hf_folder(folder).spec.layers[0].rope_base == 123.0


def test_the_chat_template_is_the_one_of_the_folder(folder: Path) -> None:
    assert read_hf_folder(folder).chat_template == CHAT_TEMPLATE
    config = folder / "tokenizer_config.json"
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    config.write_text(json.dumps({"chat_template": several}))
    assert read_hf_folder(folder).chat_template == "yes"
    (folder / "chat_template.jinja").write_text("from the file")
    assert read_hf_folder(folder).chat_template == "from the file"
    (folder / "chat_template.jinja").unlink()
    config.unlink()
    assert read_hf_folder(folder).chat_template is None


def test_the_tokenizer_is_that_of_the_folder(folder: Path) -> None:
    checkpoint = read_hf_folder(folder)
    assert checkpoint.tokenizer_folder == folder
    assert not checkpoint.tokenizer_metadata


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, "RoPE scaling of type 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "RoPE scaling of type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "RoPE scaling of type 'yarn'"),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"]}, "Gemma3ForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"head_dim": 24}, "head_dim 24 must be a multiple of 16"),
        ({"num_key_value_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
    ],
)
def test_unsupported_settings_are_named(folder: Path, changes: dict[str, Any], named: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(UnsupportedModelError, match=re.escape(named)) as raised:
        read_hf_folder(folder)
    assert str(folder) in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": "many"}, "vocab_size is 'many', not a whole number"),
        ({"num_hidden_layers": 3}, "tensor model.layers.2.input_layernorm.weight [64] is missing"),
        (
            {"intermediate_size": 128},
            "tensor model.layers.0.mlp.gate_proj.weight has shape [96, 64] where [128, 64] was expected",
        ),
        ({"rope_scaling": 4}, "rope_scaling is 4"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "of type 'llama3' but has no low_freq_factor",
        ),
        ({"rope_theta": 0}, "rope_theta is 0.0, but must be positive"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ],
)
def test_contradictions_are_named(folder: Path, changes: dict[str, Any], named: str) -> None:
    change_config(folder, **changes)
    with pytest.raises(ModelLoadError, match=re.escape(named)) as raised:
        read_hf_folder(folder)
    assert str(folder) in str(raised.value)
    assert "again" in str(raised.value)


def test_more_layers_than_described_are_refused(folder: Path) -> None:
    change_config(folder, num_hidden_layers=1)
    with pytest.raises(UnsupportedModelError, match=r"tensor model\.layers\.1.* and 8 more has no place"):
        read_hf_folder(folder)


def test_missing_and_damaged_files_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    sound = weights.read_bytes()
    for content, named in [
        (sound[:-4], "it should have .* bytes but has"),
        (sound + b"more", "it should have .* bytes but has"),
        (sound[:100], "its header is longer than the file"),
        (b"\xff" * 100, "its header is longer than the file"),
        (sound[:8] + b"[" + sound[9:], "its header is damaged"),
        (b"", "its header is longer than the file"),
    ]:
        weights.write_bytes(content)
        with pytest.raises(ModelLoadError, match=rf"model\.safetensors: {named}"):
            read_hf_folder(folder)
    weights.unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is missing"):
        read_hf_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"config\.json is not valid JSON"):
        read_hf_folder(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match=r"config\.json is not a JSON object"):
        read_hf_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelLoadError, match=r"config\.json is missing"):
        read_hf_folder(folder)


@pytest.mark.parametrize(
    "offsets", [[4, 8], [0, 8], [4, 0], [-4, 0]], ids=["gap", "too long", "reversed", "negative"]
)
def test_a_header_whose_extents_do_not_fit_is_damaged(folder: Path, offsets: list[int]) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(8)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadError, match="header is damaged"):
        read_hf_folder(folder)


def test_an_integer_weight_is_refused(folder: Path) -> None:
    spec = random_spec(**SHAPE)
    with (folder / "model.safetensors").open("wb") as file:
        tensors = {
            LLAMA.source_name(n): ("I8", w.shape, w.astype(np.int8))
            for n, w in random_weights(spec, 5).items()
        }
        write_safetensors(file, tensors, {})
    with pytest.raises(UnsupportedModelError, match=r"tensor model.embed_tokens.weight is stored as I8"):
        read_hf_folder(folder)
