from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import parameter_count
from duologue.models.duologue_config import duologue_config, shared_owners
from duologue.models.hf_checkpoint import read_hf_folder, spec_from_config
from duologue.models.presets import PRESETS, preset
from duologue.models.random_model import random_spec, random_weights, write_random_duologue
from duologue.models.spec import Mlp

SIZES = {
    "model_type": "duologue", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 12,
    "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip
LOCAL, GLOBAL = "sliding_attention", "full_attention"
EVERYTHING = random_spec(
    architecture="duologue", layers=4, kv_heads=1, windows=[16, 16, 0, 0], kv_owners=[None, 0, None, 2],
    rope_base=5e5, local_rope_base=1e4, rope_factor=4.0, tied_head=True, softmax_scale=0.21, attention_softcap=20.0,
    qk_norm=True, sinks=True, post_norms=True, mlp_kind=Mlp.GATED_GELU, qkv_clamp=2.0, mlp_clamp=3.0,
    embedding_scale=1.5, logit_softcap=25.0, native_int8=True,
)  # fmt: skip


def test_missing_settings_are_the_architecture() -> None:
    spec = spec_from_config(SIZES)
    local, last = spec.layers[0], spec.layers[5]
    assert [layer.window for layer in spec.layers] == ([1024] * 5 + [0]) * 2
    assert {layer.kv_owner for layer in spec.layers} == {None}
    assert (local.kv_heads, local.mlp, local.rope_base, last.rope_base) == (1, Mlp.RELU2, 1e4, 1e6)
    assert spec.native_int8
    assert spec.tied_head


def test_neighbours_share_inside_a_block_and_globals_across_blocks() -> None:
    spec = spec_from_config(SIZES | {"num_hidden_layers": 24, "kv_sharing_local": 3, "kv_sharing_global": 3})
    owners = [layer.kv_owner for layer in spec.layers]
    assert owners[:6] == [None, 0, 0, None, 3, None]
    assert owners[6:12] == [None, 6, 6, None, 9, 5]
    assert owners[17] == 5
    assert owners[23] is None


@pytest.mark.parametrize(
    ("types", "of_local", "of_global", "owners"),
    [
        ("lllll", 2, 1, [None, 0, None, 2, None]),
        ("lgl", 3, 1, [None, None, None]),
        ("gggg", 1, 3, [None, 0, 0, None]),
        ("glgl", 2, 2, [None, None, 0, None]),
        ("llll", 1, 1, [None] * 4),
    ],
)
def test_sharing_rule(types: str, of_local: int, of_global: int, owners: list[int | None]) -> None:
    assert shared_owners([kind == "l" for kind in types], of_local, of_global) == owners


def test_explicit_lists_override_pattern_and_sharing() -> None:
    spec = spec_from_config(
        SIZES
        | {"num_hidden_layers": 3, "kv_sharing_local": 3, "sliding_window_pattern": 1, "sliding_window": 8}
        | {"layer_types": [GLOBAL, LOCAL, GLOBAL], "kv_owners": [None, None, 0]}
    )
    assert [(layer.window, layer.kv_owner) for layer in spec.layers] == [(0, None), (8, None), (0, 0)]


@pytest.mark.parametrize("spec", [EVERYTHING, *map(preset, PRESETS)], ids=["everything", *PRESETS])
def test_a_written_configuration_is_read_as_the_spec(spec: Any) -> None:
    assert spec_from_config(json.loads(json.dumps(duologue_config(spec)))) == spec


def test_a_folder_gives_back_spec_weights_and_tokenizer(tmp_path: Path) -> None:
    folder = write_random_duologue(tmp_path / "m", EVERYTHING, seed=3)
    checkpoint = read_hf_folder(folder)
    assert checkpoint.spec == EVERYTHING
    expected = random_weights(EVERYTHING, 3)
    assert checkpoint.weights.keys() == expected.keys()
    assert all(np.array_equal(values, expected[name]) for name, values in checkpoint.weights.items())
    preset_folder = write_random_duologue(tmp_path / "1m", "1m", context_tokens=512)
    assert read_hf_folder(preset_folder).spec == dataclasses.replace(preset("1m"), context_tokens=512)


def test_layers_that_no_configuration_says_are_named() -> None:
    layers = list(EVERYTHING.layers)
    layers[3] = dataclasses.replace(layers[3], mlp_clamp=1.0)
    with pytest.raises(ValueError, match="layer 3: mlp_clamp"):
        duologue_config(dataclasses.replace(EVERYTHING, layers=tuple(layers)))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sliding_window": 0}, "sliding_window = 0 .*at least 1 position"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern = 0"),
        ({"hidden_act": "gelu"}, r"hidden_act = 'gelu' .*\(relu2, silu, gelu_pytorch_tanh are\)"),
        ({"hidden_act": ["relu2"]}, r"hidden_act = \['relu2'\]"),
        ({"layer_types": [LOCAL] * 11 + ["recurrent"]}, r"layer_types\[11\] = 'recurrent'"),
        ({"kv_owners": [None, 2, *[None] * 10]}, r"kv_owners\[1\] = 2 .*reads the KV of an earlier one"),
        ({"kv_owners": [None, 1, *[None] * 10]}, r"kv_owners\[1\] = 1"),
        ({"kv_owners": [None, -1, *[None] * 10]}, r"kv_owners\[1\] = -1"),
        ({"kv_owners": [None] * 5 + [0] + [None] * 6}, r"layer 5: kv_owner 0 is of another kind \(window 1024, not 0\)"),
        ({"kv_owners": [None, 0, 1] + [None] * 9}, "layer 2: kv_owner 1 has no KV of its own"),
        ({"qkv_clamp": -1.0}, "qkv_clamp = -1.0"),
        ({"mlp_clamp": 0}, "mlp_clamp = 0"),
    ],
)  # fmt: skip
def test_what_is_not_run_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        spec_from_config(SIZES | changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": [LOCAL]}, "layer_types has 1 entries, but num_hidden_layers is 12"),
        ({"kv_owners": [None]}, "kv_owners has 1 entries, but num_hidden_layers is 12"),
        ({"kv_owners": [None, "0", *[None] * 10]}, r"kv_owners\[1\] is '0'"),
        ({"kv_owners": [None, False, *[None] * 10]}, r"kv_owners\[1\] is False"),
        ({"kv_owners": {}}, "kv_owners is {}, not a list"),
        ({"kv_sharing_local": 0}, "kv_sharing_local is 0, but must be at least 1"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"sliding_window": None}, "sliding_window is null, but there are sliding_attention layers"),
        ({"qk_norm": 1}, "qk_norm is 1, not true or false"),
        ({"embedding_multiplier": 0.0}, "embedding_multiplier is 0.0, but must be positive"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named) as raised:
        spec_from_config(SIZES | changes)
    assert not isinstance(raised.value, UnsupportedModelError)


@pytest.mark.parametrize(
    ("name", "parameters", "within"),
    [("1m", 1e6, 0.1), ("15m", 15e6, 0.02), ("135m", 135e6, 0.01), ("1b", 1e9, 0.02), ("13b", 13e9, 0.02), ("34b", 34e9, 0.02),
     ("110b", 110e9, 0.02)],
)  # fmt: skip
def test_presets_have_the_parameters_in_their_names(name: str, parameters: float, within: float) -> None:
    assert abs(parameter_count(preset(name)) / parameters - 1) < within


def test_all_presets_are_named_above() -> None:
    assert list(PRESETS) == ["1m", "15m", "135m", "1b", "13b", "34b", "110b"]
    with pytest.raises(UnsupportedModelError, match="no preset '7b'; known are 1m, 15m"):
        preset("7b")


def test_the_135m_preset_has_twelve_owners() -> None:
    spec = preset("135m")
    owners = [layer for layer in spec.layers if layer.kv_owner is None]
    assert (len(spec.layers), spec.hidden_size, spec.layers[0].head_dim, spec.vocab_size) == (
        30,
        576,
        64,
        49152,
    )
    assert [sum(layer.window == window for layer in owners) for window in (1024, 0)] == [10, 2]
    assert spec.kv_bytes_per_token == 12 * 136
