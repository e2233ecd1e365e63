from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.gguf_checkpoint import read_gguf
from duologue.models.random_model import random_weights
from duologue.models.spec import ModelSpec
from tests.models.family_case import GEMMA2, GEMMA3
from tests.models.gguf_case import Q, write_gguf

LOCAL_BASE = GEMMA3.layers[0].rope_base


def with_head_scale(spec: ModelSpec, scale: float | None = None) -> ModelSpec:
    """GGUF files do not say the scale of scores: it follows from the head size."""
    layers = (
        dataclasses.replace(layer, softmax_scale=scale or layer.head_dim**-0.5) for layer in spec.layers
    )
    return dataclasses.replace(spec, layers=tuple(layers), norm_eps=float(np.float32(spec.norm_eps)))


GEMMA2, GEMMA3 = with_head_scale(GEMMA2), with_head_scale(GEMMA3)


def written(path: Path, spec: ModelSpec, **metadata: Any) -> Path:
    named = {f"{spec.architecture}.{name}": value for name, value in metadata.items()}
    return write_gguf(path / "m.gguf", spec, random_weights(spec, 7), metadata=named)


@pytest.mark.parametrize("spec", [GEMMA2, GEMMA3], ids=lambda spec: spec.architecture)
def test_a_float32_file_gives_back_spec_and_weights(tmp_path: Path, spec: ModelSpec) -> None:
    checkpoint = read_gguf(written(tmp_path, spec))
    assert checkpoint.spec == spec
    expected = random_weights(spec, 7)
    assert checkpoint.weights.keys() == expected.keys()
    for name, values in expected.items():  # q and k in their order, norms as what they multiply by
        assert np.array_equal(checkpoint.weights[name], values), name


def test_q8_0_is_read(tmp_path: Path) -> None:
    weights = random_weights(GEMMA3, 7)
    kinds = {name: Q.Q8_0 for name, values in weights.items() if values.ndim == 2}
    checkpoint = read_gguf(write_gguf(tmp_path / "m.gguf", GEMMA3, weights, kinds=kinds))
    for name, values in weights.items():
        assert np.abs(checkpoint.weights[name] - values).max() <= np.abs(values).max() / 127, name


def windows(spec: ModelSpec) -> list[int]:
    return [layer.window for layer in spec.layers]


def test_the_pattern_of_windows(tmp_path: Path) -> None:
    def read(spec: ModelSpec, pattern: Any) -> list[int]:
        return windows(
            read_gguf(written(tmp_path, spec, **{"attention.sliding_window_pattern": pattern})).spec
        )

    assert read(GEMMA3, None) == [24] * 5 + [0, 24]
    assert read(GEMMA3, 2) == [24, 0] * 3 + [24]
    assert read(GEMMA3, 1) == [0] * 7
    assert read(GEMMA3, 0) == [24] * 7
    assert read(GEMMA3, [False] + [True] * 6) == [0] + [24] * 6
    assert read(GEMMA2, [True, True, False, False]) == [24, 24, 0, 0]


def test_missing_entries_are_what_llama_cpp_takes(tmp_path: Path) -> None:
    absent = (
        "attention.sliding_window",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "rope.freq_base",
    )
    gemma2 = read_gguf(written(tmp_path, GEMMA2, **dict.fromkeys(absent))).spec
    assert windows(gemma2) == [4096, 0] * 2
    assert (gemma2.layers[0].attention_softcap, gemma2.logit_softcap) == (50.0, 30.0)
    assert gemma2.layers[0].rope_base == 10000.0
    gemma3 = read_gguf(written(tmp_path, GEMMA3, **dict.fromkeys(absent))).spec
    assert windows(gemma3) == [0] * 7
    assert (gemma3.layers[0].rope_base, gemma3.layers[0].rope_factor) == (10000.0, 8.0)  # global, so scaled
    assert gemma3.logit_softcap == 0.0


def test_rope_of_local_layers(tmp_path: Path) -> None:
    layers = read_gguf(written(tmp_path, GEMMA3, **{"rope.freq_base_swa": 55.0})).spec.layers
    assert [(layer.rope_base, layer.rope_factor) for layer in layers[4:6]] == [(55.0, 1.0), (1e6, 8.0)]
    scaled = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
    layers = read_gguf(written(tmp_path, GEMMA2, **scaled)).spec.layers
    assert {(layer.rope_base, layer.rope_factor) for layer in layers} == {(10000.0, 2.0)}


@pytest.mark.parametrize(("architecture", "count"), [("gemma2", 46), ("gemma3", 62)])
def test_scores_of_27b_models_are_scaled_by_hidden_over_heads(
    tmp_path: Path, architecture: str, count: int
) -> None:
    tiny = {"gemma2": GEMMA2, "gemma3": GEMMA3}[architecture]
    tiny = with_head_scale(tiny, (64 / 4) ** -0.5)
    pattern = tiny.layers[:2] if architecture == "gemma2" else tiny.layers[:6]
    layers = (pattern * count)[:count]
    spec = dataclasses.replace(tiny, layers=layers)
    found = read_gguf(written(tmp_path, spec)).spec.layers
    assert {layer.softmax_scale for layer in found} == {0.25}
    assert {layer.head_dim for layer in found} == {32}


@pytest.mark.parametrize(
    ("spec", "metadata", "error", "named"),
    [
        (GEMMA2, {"attention.sliding_window": 0}, UnsupportedModelError, "gemma2.attention.sliding_window = 0"),
        (GEMMA3, {"attn_logit_softcapping": 50.0}, UnsupportedModelError, "gemma3.attn_logit_softcapping = 50.0"),
        (GEMMA3, {"attention.causal": False}, UnsupportedModelError, "gemma3.attention.causal = False"),
        (GEMMA3, {"rope.scaling.type": "yarn"}, UnsupportedModelError, "gemma3.rope.scaling.type = 'yarn'"),
        (GEMMA3, {"rope.dimension_count_swa": 16}, UnsupportedModelError, "gemma3.rope.dimension_count_swa is 16"),
        (
            GEMMA3,
            {"attention.sliding_window_pattern": [True]},
            ModelLoadError,
            "gemma3.attention.sliding_window_pattern has 1 entries for 7 layers",
        ),
        (GEMMA3, {"embedding_length": None}, ModelLoadError, "gemma3.embedding_length is missing"),
    ],
)  # fmt: skip
def test_bad_metadata_is_named(
    tmp_path: Path, spec: ModelSpec, metadata: dict[str, Any], error: type[ModelLoadError], named: str
) -> None:
    with pytest.raises(error, match=re.escape(named)) as raised:
        read_gguf(written(tmp_path, spec, **metadata))
    assert type(raised.value) is error


def test_a_norm_that_is_missing_is_named(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", GEMMA3, random_weights(GEMMA3, 7), tensors={"blk.2.post_ffw_norm.weight": None}
    )
    with pytest.raises(ModelLoadError, match=r"tensor blk\.2\.post_ffw_norm\.weight \[64\] is missing"):
        read_gguf(path)
