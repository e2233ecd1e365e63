from __future__ import annotations

import numpy as np
import pytest

from duologue.models.checkpoint import Weights
from duologue.models.random_model import random_spec, random_weights
from duologue.models.reference import reference_logits
from duologue.models.spec import ModelSpec

IDS = np.random.default_rng(0).integers(0, 320, 300)  # more than one block of rows


def slow_logits(spec: ModelSpec, weights: Weights, ids: np.ndarray) -> np.ndarray:
    """One position, head and pair at a time, in float64: what the words of the architecture say."""
    x = weights["embedding"][ids].astype(np.float64)
    stored = []

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.norm_eps) * weights[name]

    for i, layer in enumerate(spec.layers):
        own, d = f"layers.{i}.", layer.head_dim
        h = norm(x, own + "attention_norm")

        def turned(
            vector: np.ndarray, position: int, base: float = layer.rope_base, d: int = d
        ) -> np.ndarray:
            out = vector.copy()
            for pair in range(d // 2):
                angle = position * base ** (-2 * pair / d)
                a, b = vector[pair], vector[pair + d // 2]
                out[pair] = a * np.cos(angle) - b * np.sin(angle)
                out[pair + d // 2] = b * np.cos(angle) + a * np.sin(angle)
            return out

        if layer.kv_owner is None:
            k = (h @ weights[own + "k"].T).reshape(len(ids), layer.kv_heads, d)
            v = (h @ weights[own + "v"].T).reshape(len(ids), layer.kv_heads, d)
            k = np.array([[turned(head, p) for head in heads] for p, heads in enumerate(k)])
            stored.append((k, v))
        else:
            stored.append(stored[layer.kv_owner])
        k, v = stored[i]
        q = (h @ weights[own + "q"].T).reshape(len(ids), layer.heads, d)
        attended = np.zeros((len(ids), layer.heads, d))
        for p in range(len(ids)):
            first = max(0, p + 1 - layer.window) if layer.window else 0
            for head in range(layer.heads):
                kv = head // (layer.heads // layer.kv_heads)
                scores = k[first : p + 1, kv] @ turned(q[p, head], p) / np.sqrt(d)
                share = np.exp(scores - scores.max())
                attended[p, head] = share / share.sum() @ v[first : p + 1, kv]
        x = x + attended.reshape(len(ids), -1) @ weights[own + "output"].T
        h = norm(x, own + "mlp_norm")
        gate = h @ weights[own + "gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weights[own + "up"].T)) @ weights[own + "down"].T
    return norm(x, "final_norm") @ weights.get("head", weights["embedding"]).T


@pytest.mark.parametrize(
    "spec",
    [
        random_spec(kv_heads=4),
        random_spec(kv_heads=2, rope_base=500.0),
        random_spec(kv_heads=1, tied_head=True),
        random_spec(kv_heads=2, layers=4, windows=[0, 20, 20, 0], kv_owners=[None, None, 1, 0]),
    ],
    ids=["mha", "gqa", "mqa tied", "windows and shared KV"],
)
def test_logits_are_those_of_the_slow_spelling(spec: ModelSpec) -> None:
    weights = random_weights(spec, 3)
    logits = reference_logits(spec, weights, IDS)
    assert logits.dtype == np.float32
    assert logits.shape == (300, 320)
    expected = slow_logits(spec, weights, IDS)
    # Rounding of sums over at most 300 terms; the logits themselves spread over several units.
    assert expected.std() > 0.5
    assert np.abs(logits - expected).max() < 1e-3


def test_a_window_changes_only_what_lies_beyond_it() -> None:
    spec, windowed = random_spec(), random_spec(windows=[16, 16])
    weights = random_weights(spec, 3)
    full, cut = (reference_logits(s, weights, IDS[:64]) for s in (spec, windowed))
    assert np.array_equal(full[:16], cut[:16])
    assert np.abs(full[32:] - cut[32:]).max() > 1e-2


@pytest.mark.parametrize("ids", [[], [320], [-1], [[1]]])
def test_bad_ids_are_refused(ids: list[int]) -> None:
    spec = random_spec()
    with pytest.raises(ValueError, match="below 320"):
        reference_logits(spec, random_weights(spec, 0), ids)
