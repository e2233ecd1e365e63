from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from duologue.bench.logit_reader import LogitReader
from duologue.models.calibrate import calibrate
from duologue.models.checkpoint import Weights
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_weights
from duologue.models.reference import reference_logits
from duologue.models.spec import ModelSpec
from tests.models.test_calibrate import CALIBRATION_IDS, SPECS

IDS = np.random.default_rng(2).integers(0, 320, 300)  # more than one chunk


def logits_of(spec: ModelSpec, weights: Weights, *, float_attention: bool) -> np.ndarray:
    model = PackedModel("random", spec, pack_model(spec, weights), b"")
    reader = LogitReader(model, threads=1, float_attention=float_attention)
    return np.concatenate([chunk.copy() for chunk in reader.read(IDS.tolist())])


@pytest.mark.parametrize("kind", SPECS)
def test_what_remains_is_the_error_of_weights_and_activations(kind: str) -> None:
    spec = SPECS[kind]
    weights = random_weights(spec, 5)
    expected = reference_logits(spec, weights, IDS)
    apart, whole = (logits_of(spec, weights, float_attention=apart) for apart in (True, False))
    assert apart.shape == whole.shape == expected.shape
    # The two share every map, so they are nearer to each other than either is to the float model.
    assert 0 < _rms(apart - whole) < _rms(apart - expected) < 0.1 * expected.std()


@pytest.mark.parametrize(
    ("kind", "added"), [("gqa", "key_offset"), ("post-norms, tied", "embedding_channels")]
)
def test_what_calibration_adds_is_taken_into_account(kind: str, added: str) -> None:
    spec = SPECS[kind]
    weights = random_weights(spec, 5)
    calibrated = calibrate(spec, weights, CALIBRATION_IDS)
    assert any(name.endswith(added) for name in calibrated)
    expected = reference_logits(spec, weights, IDS)
    assert _rms(logits_of(spec, calibrated, float_attention=True) - expected) < 0.1 * expected.std()


@pytest.mark.parametrize(
    ("kind", "without"),
    [
        ("windows and shared KV", {"window": 0}),
        ("post-norms, tied", {"softmax_scale": None}),
        ("post-norms, tied", {"qk_norm": False}),
        ("post-norms, caps", {"attention_softcap": 0.0}),
        ("squared ReLU, sinks", {"sinks": False}),
        ("clamps", {"qkv_clamp": 0.0}),
        ("clamps", {"mlp_clamp": 0.0}),
    ],
)
def test_negative_control_without_a_field_of_a_layer_the_logits_are_others(
    kind: str, without: dict[str, Any]
) -> None:
    spec = SPECS[kind]
    weights = random_weights(spec, 5)
    layers = tuple(dataclasses.replace(layer, **without) for layer in spec.layers)
    other = dataclasses.replace(spec, layers=layers)
    expected = reference_logits(spec, weights, IDS)
    right, wrong = (_rms(logits_of(s, weights, float_attention=True) - expected) for s in (spec, other))
    print(f"error {right:.4f}, without {wrong:.4f}")
    assert wrong > 1.5 * right


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))
