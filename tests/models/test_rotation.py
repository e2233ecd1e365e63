from __future__ import annotations

import numpy as np
import pytest

from duologue.models.random_model import random_spec, random_weights
from duologue.models.reference import reference_logits
from duologue.models.rewrite import rotate_model
from duologue.models.rotation import prime_factors, rotate, rotate_rows
from duologue.models.spec import ModelSpec

IDS = np.random.default_rng(0).integers(0, 320, 300)  # more than one block of rows


@pytest.mark.parametrize("width", [1, 2, 3, 7, 16, 37, 48, 96, 210, 576, 1536])
def test_the_matrix_is_orthogonal_and_symmetric(width: int) -> None:
    matrix = rotate(np.eye(width))
    assert np.abs(matrix @ matrix.T - np.eye(width)).max() < 1e-12
    assert np.abs(matrix - matrix.T).max() < 1e-12


@pytest.mark.parametrize("width", [48, 64, 576])
def test_one_large_channel_is_spread(width: int) -> None:
    outlier = np.zeros(width)
    outlier[5] = 100.0
    assert np.abs(rotate(outlier)).max() < 30
    assert np.linalg.norm(rotate(outlier)) == pytest.approx(100.0)


def test_rows_are_rotated_by_the_transpose() -> None:
    w = np.random.default_rng(1).standard_normal((48, 5))
    assert np.allclose(rotate_rows(w), rotate(np.eye(48)).T @ w, atol=1e-12)


def test_the_argument_is_not_changed() -> None:
    x = np.arange(6.0)
    rotate(x)
    assert np.array_equal(x, np.arange(6.0))


@pytest.mark.parametrize(
    ("n", "factors"), [(1, []), (2, [2]), (37, [37]), (576, [2] * 6 + [3, 3]), (49, [7, 7])]
)
def test_prime_factors(n: int, factors: list[int]) -> None:
    assert prime_factors(n) == factors


@pytest.mark.parametrize(
    "spec",
    [
        random_spec(kv_heads=4),
        random_spec(kv_heads=2, hidden=80, head_dim=48),
        random_spec(kv_heads=1, tied_head=True),
        random_spec(kv_heads=2, layers=4, windows=[0, 20, 20, 0], kv_owners=[None, None, 1, 0]),
    ],
    ids=["mha", "gqa, odd factors", "mqa tied", "windows and shared KV"],
)
def test_a_rotated_model_computes_the_same_function(spec: ModelSpec) -> None:
    weights = random_weights(spec, 3)
    rotated = rotate_model(spec, weights)
    expected, logits = (reference_logits(spec, w, IDS) for w in (weights, rotated))
    # Weights and sums round at other places: a few hundred roundings of 6e-8 on logits of a few units.
    assert np.abs(logits - expected).max() < 1e-3 * np.abs(expected).max()
    for name in ("embedding", "layers.0.q", "layers.0.output", "layers.1.down"):
        assert np.abs(rotated[name] - weights[name]).max() > 0.1, (
            "it must not be equal for want of a rotation"
        )


def test_leaving_one_map_unrotated_changes_the_function() -> None:
    spec = random_spec(kv_heads=2)
    weights = random_weights(spec, 3)
    broken = {**rotate_model(spec, weights), "layers.1.up": weights["layers.1.up"]}
    expected, logits = (reference_logits(spec, w, IDS) for w in (weights, broken))
    assert np.abs(logits - expected).max() > 0.1 * np.abs(expected).max()
