"""GGUF files of Llama 3, Qwen2 and Qwen3, as a converter writes them."""

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
from duologue.models.reference import reference_logits
from duologue.models.spec import ModelSpec
from tests.models.family_case import LLAMA3, QWEN2, QWEN3
from tests.models.gguf_case import Q, write_gguf


def as_stored(spec: ModelSpec) -> ModelSpec:
    """A file holds these numbers as float32, and no windows of Qwen."""
    layers = (
        dataclasses.replace(
            layer, window=0, rope_divisors=tuple(map(float, np.array(layer.rope_divisors, np.float32)))
        )
        for layer in spec.layers
    )
    return dataclasses.replace(spec, layers=tuple(layers), norm_eps=float(np.float32(spec.norm_eps)))


SPECS = [as_stored(spec) for spec in (LLAMA3, QWEN2, QWEN3)]
LLAMA3, QWEN2, QWEN3 = SPECS


def written(path: Path, spec: ModelSpec, **changes: Any) -> Path:
    return write_gguf(path / "m.gguf", spec, random_weights(spec, 7), **changes)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.architecture)
def test_a_float32_file_gives_back_spec_and_weights(tmp_path: Path, spec: ModelSpec) -> None:
    checkpoint = read_gguf(written(tmp_path, spec))
    assert checkpoint.spec == spec
    expected = random_weights(spec, 7)
    assert checkpoint.weights.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(checkpoint.weights[name], values), name


def test_q8_0_is_read_beside_biases_in_float32(tmp_path: Path) -> None:
    weights = random_weights(QWEN2, 7)
    kinds = {name: Q.Q8_0 for name, values in weights.items() if values.ndim == 2}
    checkpoint = read_gguf(written(tmp_path, QWEN2, kinds=kinds))
    for name, values in weights.items():
        error = np.abs(checkpoint.weights[name] - values).max()
        assert error <= (np.abs(values).max() / 127 if name in kinds else 0.0), name


def test_divisors_and_biases_change_what_is_computed(tmp_path: Path) -> None:
    ids = np.arange(200) % 320
    for spec, removed in (
        (LLAMA3, {"rope_divisors": ()}),
        (QWEN2, {"qkv_bias": False}),
        (QWEN3, {"qk_norm": False}),
    ):
        checkpoint = read_gguf(written(tmp_path, spec))
        plain = dataclasses.replace(
            spec, layers=tuple(dataclasses.replace(layer, **removed) for layer in spec.layers)
        )
        weights = {name: w for name, w in checkpoint.weights.items() if not name.endswith("_bias")}
        logits = reference_logits(checkpoint.spec, checkpoint.weights, ids)
        assert np.abs(logits - reference_logits(plain, weights, ids)).max() > 0.1


def test_a_window_that_never_ends_is_none_and_any_other_refused(tmp_path: Path) -> None:
    long = {"qwen2.attention.sliding_window": QWEN2.context_tokens}
    assert read_gguf(written(tmp_path, QWEN2, metadata=long)).spec == QWEN2
    for spec in (QWEN2, QWEN3):
        name = f"{spec.architecture}.attention.sliding_window"
        with pytest.raises(UnsupportedModelError, match=re.escape(f"{name} = 24")):
            read_gguf(written(tmp_path, spec, metadata={name: 24}))


@pytest.mark.parametrize(
    ("spec", "tensor", "named"),
    [
        (QWEN2, "blk.1.attn_k.bias", r"tensor blk\.1\.attn_k\.bias \[32\] is missing"),
        (QWEN3, "blk.0.attn_q_norm.weight", r"tensor blk\.0\.attn_q_norm\.weight \[32\] is missing"),
    ],
)
def test_what_a_family_always_has_may_not_be_missing(
    tmp_path: Path, spec: ModelSpec, tensor: str, named: str
) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_gguf(written(tmp_path, spec, tensors={tensor: None}))


def test_other_rope_scaling_is_refused(tmp_path: Path) -> None:
    metadata = {"qwen3.rope.scaling.type": "yarn", "qwen3.rope.scaling.factor": 4.0}
    with pytest.raises(UnsupportedModelError, match=r"qwen3\.rope\.scaling\.type = 'yarn'"):
        read_gguf(written(tmp_path, QWEN3, metadata=metadata))


@pytest.mark.parametrize("spec", [QWEN2, QWEN3], ids=lambda spec: spec.architecture)
def test_divisors_of_a_family_without_them_are_refused(tmp_path: Path, spec: ModelSpec) -> None:
    tensors = {"rope_freqs.weight": np.ones(spec.layers[0].head_dim // 2, np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight"):
        read_gguf(written(tmp_path, spec, tensors=tensors))
