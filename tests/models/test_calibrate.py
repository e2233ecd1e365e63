from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys

import numpy as np
import pytest

from duologue.bench.logit_reader import LogitReader
from duologue.kernels import PAGE_TOKENS
from duologue.kernels.rows import quantize_rows
from duologue.models.calibrate import calibrate
from duologue.models.checkpoint import Weights
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights
from duologue.models.reference import reference_logits
from duologue.models.rewrite import rotate_model
from duologue.models.spec import Mlp, ModelSpec
from tests.cli.processes import environment
from tests.kernels.isas import ISAS
from tests.kernels.step_case import StepCase

CALIBRATION_IDS = np.random.default_rng(0).integers(0, 320, 300).astype(np.int32)
OTHER_IDS = np.random.default_rng(1).integers(0, 320, 200)

SPECS = {
    "mha": random_spec(kv_heads=4),
    "gqa": random_spec(kv_heads=2, hidden=80, head_dim=48),
    "mqa tied": random_spec(kv_heads=1, tied_head=True),
    "groups": random_spec(kv_heads=2, mlp=128),
    "windows and shared KV": random_spec(
        kv_heads=2, layers=4, mlp=128, windows=[0, 20, 20, 0], kv_owners=[None, None, 1, 0]
    ),
    "post-norms, tied": random_spec(
        kv_heads=1, layers=3, windows=[20, 20, 0], tied_head=True, post_norms=True, qk_norm=True, mlp_kind=Mlp.GATED_GELU,
        embedding_scale=8.0, softmax_scale=0.2,
    ),
    "post-norms, caps": random_spec(
        kv_heads=2, windows=[20, 0], post_norms=True, mlp_kind=Mlp.GATED_GELU, attention_softcap=5.0, logit_softcap=4.0
    ),
    "squared ReLU, sinks": random_spec(kv_heads=2, mlp_kind=Mlp.RELU2, sinks=True),
    "biases": random_spec(kv_heads=2, tied_head=True, qkv_bias=True),
    "biases, shared KV": random_spec(kv_heads=2, layers=3, kv_owners=[None, 0, None], qkv_bias=True, qk_norm=True),
    "clamps": random_spec(kv_heads=1, mlp_kind=Mlp.RELU2, qkv_clamp=1.0, mlp_clamp=1.0),
}  # fmt: skip

SAME_BITS = ("windows and shared KV", "post-norms, tied", "post-norms, caps", "squared ReLU, sinks")


def weights_with_outliers(spec: ModelSpec, seed: int) -> Weights:
    """A random model rewritten so that two channels of the residual stream, and two of each MLP, are large."""
    weights = random_weights(spec, seed)
    stream, inner = [3, 17], [5, 40]
    weights["embedding"][:, stream] *= 20
    weights["head"][:, stream] /= 20
    for i in range(len(spec.layers)):
        own = f"layers.{i}."
        for name in ("q", "k", "v", "gate", "up"):
            weights[own + name][:, stream] /= 20
        for name in ("output", "down"):
            weights[own + name][stream] *= 20
        weights[own + "up"][inner] *= 30
        weights[own + "down"][:, inner] /= 30
    return weights


def int8_error(spec: ModelSpec, weights: Weights, expected: np.ndarray) -> float:
    """Root mean square difference between the engine's logits and the expected ones."""
    reader = LogitReader(PackedModel("random", spec, pack_model(spec, weights), b""), threads=1)
    logits = np.concatenate([chunk.copy() for chunk in reader.read(OTHER_IDS.tolist())])
    return float(np.sqrt(np.mean(np.square(logits - expected))))


@pytest.mark.parametrize("kind", SPECS)
def test_the_rewritten_model_computes_the_same_function(kind: str) -> None:
    spec = SPECS[kind]
    weights = random_weights(spec, 3)
    calibrated = calibrate(spec, weights, CALIBRATION_IDS, rounded=False)
    expected, logits = (reference_logits(spec, w, OTHER_IDS) for w in (weights, calibrated))
    assert np.abs(logits - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("kind", SPECS)
def test_every_map_lies_on_the_grid_of_its_codes(kind: str) -> None:
    """So that packing rounds nothing a second time; up's rows have been divided by a scale since, hence the tolerance."""
    spec = SPECS[kind]
    calibrated = calibrate(spec, random_weights(spec, 3), CALIBRATION_IDS)
    for name, w in calibrated.items():
        if w.ndim == 2 and name != "embedding":
            codes, scale = quantize_rows(w)
            np.testing.assert_allclose(codes * scale[:, None], w, rtol=1e-6, atol=0, err_msg=name)


def test_compensation_lowers_the_error_of_the_logits() -> None:
    """On a model whose inputs are correlated, as real ones are: most of the embedding lies in a few directions."""
    spec = SPECS["gqa"]
    weights = random_weights(spec, 3)
    rng = np.random.default_rng(4)
    low = rng.standard_normal((spec.vocab_size, 8)) @ rng.standard_normal((8, spec.hidden_size))
    weights["embedding"] = (0.1 * weights["embedding"] + low).astype(np.float32)
    expected = reference_logits(spec, weights, OTHER_IDS)
    plain = calibrate(spec, weights, CALIBRATION_IDS, rounded=False)
    on_grid = {name: w if w.ndim == 1 or name == "embedding" else _rounded(w) for name, w in plain.items()}
    compensated = calibrate(spec, weights, CALIBRATION_IDS)
    errors = [
        float(np.sqrt(np.mean(np.square(reference_logits(spec, w, OTHER_IDS) - expected))))
        for w in (compensated, on_grid)
    ]
    print(errors)
    assert errors[0] < 0.9 * errors[1]


def test_layers_are_counted() -> None:
    spec = SPECS["mha"]
    done: list[int] = []
    calibrate(spec, random_weights(spec, 3), CALIBRATION_IDS, on_layer=done.append)
    assert done == list(range(1, len(spec.layers) + 1))


def _rounded(w: np.ndarray) -> np.ndarray:
    codes, scale = quantize_rows(w)
    return codes * scale[:, None]


def test_int8_errs_less_where_channels_stand_out() -> None:
    spec = random_spec(kv_heads=2)
    weights = weights_with_outliers(spec, 3)
    expected = reference_logits(spec, weights, OTHER_IDS)
    plain = int8_error(spec, weights, expected)
    rotated = int8_error(spec, rotate_model(spec, weights), expected)
    calibrated = int8_error(spec, calibrate(spec, weights, CALIBRATION_IDS), expected)
    print(
        f"plain {plain:.4f}, rotated {rotated:.4f}, calibrated {calibrated:.4f}; logits {expected.std():.4f}"
    )
    assert rotated < 0.8 * plain
    assert calibrated < 0.8 * rotated


def test_scales_of_groups_lower_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a model whose MLP says most of what there is."""
    spec = random_spec(kv_heads=2, layers=1, mlp=512)
    weights = random_weights(spec, 3)
    weights["layers.0.down"] *= 20
    weights["layers.0.gate"] *= 3
    expected = reference_logits(spec, weights, OTHER_IDS)
    grouped = int8_error(spec, calibrate(spec, weights, CALIBRATION_IDS), expected)
    monkeypatch.setattr("duologue.models.spec.DOWN_GROUPS", 1)
    whole = int8_error(spec, calibrate(spec, weights, CALIBRATION_IDS), expected)
    print(f"four groups {grouped:.4f}, one {whole:.4f}")
    assert grouped < 0.95 * whole


def test_keys_are_finer_without_what_they_share() -> None:
    """RoPE turns the last pairs so slowly that they keep what all embeddings have in common."""
    spec = random_spec(kv_heads=2, rope_base=1e6)
    weights = random_weights(spec, 3)
    shared = np.random.default_rng(5).standard_normal(spec.hidden_size).astype(np.float32)
    weights["embedding"] = weights["embedding"] + 2 * shared
    calibrated = calibrate(spec, weights, CALIBRATION_IDS)
    raw = {name: w for name, w in calibrated.items() if not name.endswith("key_offset")}
    assert len(raw) == len(calibrated) - len(spec.layers)
    assert _mean_key_scale(spec, calibrated) < 0.9 * _mean_key_scale(spec, raw)


def _mean_key_scale(spec: ModelSpec, weights: Weights) -> float:
    """Of a full page's keys, over all layers and heads."""
    case = StepCase(spec, weights, pages=1)
    case.run(OTHER_IDS[:PAGE_TOKENS], [PAGE_TOKENS])
    assert case.pools[0] is not None
    dim = spec.layers[0].head_dim
    blocks = case.pools[0].reshape(-1, PAGE_TOKENS * (2 * dim + 8))
    return float(blocks[:, 2 * PAGE_TOKENS * dim :].view(np.float32)[:, :PAGE_TOKENS].mean())


@pytest.mark.parametrize("field", [{"attention_softcap": 5.0}, {"sinks": True}])
def test_keys_stay_where_a_score_itself_counts(field: dict[str, float]) -> None:
    spec = random_spec(kv_heads=2, layers=3, kv_owners=[None, None, 0])
    layers = (*spec.layers[:2], dataclasses.replace(spec.layers[2], **field))
    spec = dataclasses.replace(spec, layers=layers)
    calibrated = calibrate(spec, random_weights(spec, 3), CALIBRATION_IDS)
    # Layer 2 reads the keys of layer 0.
    assert [f"layers.{i}.key_offset" in calibrated for i in range(3)] == [False, True, False]


def test_the_given_weights_stay_as_they_are() -> None:
    spec = SPECS["gqa"]
    weights = random_weights(spec, 3)
    before = _digest(weights)
    calibrate(spec, weights, CALIBRATION_IDS)
    assert _digest(weights) == before


def test_every_instruction_set_calibrates_to_the_same_bits() -> None:
    """In processes of their own: the whole pipeline follows DUOLOGUE_ISA.

    Models whose stream is rotated, and models with post-norms, whose scales are moved instead.
    """
    script = "from tests.models.test_calibrate import print_digest; print_digest()"
    digests: dict[str, list[str]] = {}
    for isa in ISAS:
        result = subprocess.run(
            [sys.executable, "-c", script],
            env={**environment(), "DUOLOGUE_ISA": isa},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        name, *digests[isa] = result.stdout.split()
        assert name == isa
        assert len(set(digests[isa])) == len(SAME_BITS)
    assert len({tuple(of_isa) for of_isa in digests.values()}) == 1, digests


def test_another_text_gives_other_weights() -> None:
    """The control of the test above: the digest sees what it should."""
    spec = SPECS["gqa"]
    weights = random_weights(spec, 3)
    digests = {_digest(calibrate(spec, weights, ids)) for ids in (CALIBRATION_IDS, CALIBRATION_IDS[:-1])}
    assert len(digests) == 2


def test_an_activation_that_is_not_finite_is_named() -> None:
    spec = SPECS["mha"]
    weights = random_weights(spec, 3)
    weights["embedding"][CALIBRATION_IDS[7], 2] = np.nan
    with pytest.raises(ValueError, match="embedding"):
        calibrate(spec, weights, CALIBRATION_IDS)


def print_digest() -> None:
    """The instruction set and the digests of calibrated models: what the subprocesses above run."""
    from duologue.kernels import isa_name

    digests = [
        _digest(calibrate(SPECS[kind], random_weights(SPECS[kind], 3), CALIBRATION_IDS)) for kind in SAME_BITS
    ]
    print(isa_name(), *digests)


def _digest(weights: Weights) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()


def test_a_model_trained_in_int8_is_left_as_it_is() -> None:
    spec = random_spec(kv_heads=1, mlp_kind=Mlp.RELU2, native_int8=True)
    weights = random_weights(spec, 3)
    calibrated = calibrate(spec, weights, CALIBRATION_IDS)
    assert calibrated.keys() == weights.keys()
    assert all(np.array_equal(calibrated[name], weights[name]) for name in weights)
