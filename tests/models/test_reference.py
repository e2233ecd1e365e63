from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from duologue.models.checkpoint import Weights
from duologue.models.random_model import random_spec, random_weights
from duologue.models.reference import attend, reference_logits
from duologue.models.spec import LayerSpec, Mlp, ModelSpec
from tests.models.family_case import GEMMA2, GEMMA3

IDS = np.random.default_rng(0).integers(0, 320, 300)  # more than one block of rows


def slow_logits(spec: ModelSpec, weights: Weights, ids: np.ndarray) -> np.ndarray:
    """One position, head and pair at a time, in float64: what the words of the architecture say."""
    x = weights["embedding"][ids].astype(np.float64) * spec.embedding_scale
    stored = []

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.norm_eps) * weights[name]

    def bounded(x: np.ndarray, bound: float) -> np.ndarray:
        return np.minimum(np.maximum(x, -bound), bound) if bound else x

    def capped(x: np.ndarray, cap: float) -> np.ndarray:
        return cap * np.tanh(x / cap) if cap else x

    for i, layer in enumerate(spec.layers):
        own, d = f"layers.{i}.", layer.head_dim
        h = norm(x, own + "attention_norm")

        def turned(vector: np.ndarray, position: int, layer: LayerSpec = layer) -> np.ndarray:
            out = vector.copy()
            half = layer.head_dim // 2
            for pair in range(half):
                angle = position / layer.rope_factor * layer.rope_base ** (-pair / half)
                angle /= layer.rope_divisors[pair] if layer.rope_divisors else 1.0
                a, b = vector[pair], vector[pair + half]
                out[pair] = a * np.cos(angle) - b * np.sin(angle)
                out[pair + half] = b * np.cos(angle) + a * np.sin(angle)
            return out

        def heads(
            name: str, count: int, h: np.ndarray = h, own: str = own, layer: LayerSpec = layer
        ) -> np.ndarray:
            out = h @ weights[own + name].T
            if layer.qkv_bias:
                out = out + weights[f"{own}{name}_bias"]
            return bounded(out, layer.qkv_clamp).reshape(len(ids), count, -1)

        if layer.kv_owner is None:
            k, v = heads("k", layer.kv_heads), heads("v", layer.kv_heads)
            k = norm(k, own + "k_norm") if layer.qk_norm else k
            k = np.array([[turned(head, p) for head in row] for p, row in enumerate(k)])
            stored.append((k, v))
        else:
            stored.append(stored[layer.kv_owner])
        k, v = stored[i]
        q = heads("q", layer.heads)
        q = norm(q, own + "q_norm") if layer.qk_norm else q
        scale = 1 / np.sqrt(d) if layer.softmax_scale is None else layer.softmax_scale
        attended = np.zeros((len(ids), layer.heads, d))
        for p in range(len(ids)):
            first = max(0, p + 1 - layer.window) if layer.window else 0
            for head in range(layer.heads):
                kv = head // (layer.heads // layer.kv_heads)
                scores = capped(k[first : p + 1, kv] @ turned(q[p, head], p) * scale, layer.attention_softcap)
                share = np.exp(scores)
                rest = np.exp(float(weights[own + "sinks"][head])) if layer.sinks else 0.0
                attended[p, head] = share / (share.sum() + rest) @ v[first : p + 1, kv]
        added = attended.reshape(len(ids), -1) @ weights[own + "output"].T
        x = x + (norm(added, own + "attention_post_norm") if layer.post_norms else added)
        h = norm(x, own + "mlp_norm")
        up = bounded(h @ weights[own + "up"].T, layer.mlp_clamp)
        if layer.mlp is Mlp.RELU2:
            active = np.where(up > 0, up * up, 0.0)
        else:
            gate = bounded(h @ weights[own + "gate"].T, layer.mlp_clamp)
            if layer.mlp is Mlp.GATED_SILU:
                active = gate / (1 + np.exp(-gate)) * up
            else:
                inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
                active = gate / (1 + np.exp(-2 * inner)) * up  # (1 + tanh(t)) / 2 is 1 / (1 + exp(-2t))
        added = active @ weights[own + "down"].T
        x = x + (norm(added, own + "mlp_post_norm") if layer.post_norms else added)
    return capped(norm(x, "final_norm") @ weights.get("head", weights["embedding"]).T, spec.logit_softcap)


FIELDS: dict[str, dict[str, Any]] = {
    "rope_factor": {"rope_factor": 4.0},
    "rope_divisors": {"rope_divisors": [1.0, 1.5, 2.0, 4.0, 4.0, 8.0, 8.0, 8.0]},
    "qkv_bias": {"qkv_bias": True},
    "softmax_scale": {"softmax_scale": 0.6},
    "attention_softcap": {"attention_softcap": 1.5},
    "qk_norm": {"qk_norm": True},
    "sinks": {"sinks": True},
    "post_norms": {"post_norms": True},
    "gated_gelu": {"mlp_kind": Mlp.GATED_GELU},
    "relu2": {"mlp_kind": Mlp.RELU2},
    "qkv_clamp": {"qkv_clamp": 1.0},
    "mlp_clamp": {"mlp_clamp": 0.8},
    "embedding_scale": {"embedding_scale": 3.0},
    "logit_softcap": {"logit_softcap": 5.0},
}
ALL = {
    key: value
    for fields in FIELDS.values()
    for key, value in fields.items()
    if fields is not FIELDS["gated_gelu"]
}


@pytest.mark.parametrize(
    "spec",
    [
        random_spec(kv_heads=4),
        random_spec(kv_heads=2, rope_base=500.0),
        random_spec(kv_heads=1, tied_head=True),
        random_spec(kv_heads=2, layers=4, windows=[0, 20, 20, 0], kv_owners=[None, None, 1, 0]),
        *(random_spec(kv_heads=2, windows=[0, 20], **fields) for fields in FIELDS.values()),
        random_spec(
            kv_heads=1,
            layers=4,
            windows=[0, 20, 20, 0],
            kv_owners=[None, None, 1, 0],
            local_rope_base=500.0,
            **ALL,
        ),
        GEMMA2,
        GEMMA3,
    ],
    ids=["mha", "gqa", "mqa tied", "windows and shared KV", *FIELDS, "everything", "gemma2", "gemma3"],
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


@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_no_field_is_ignored(fields: dict[str, Any]) -> None:
    plain, changed = random_spec(kv_heads=2), random_spec(kv_heads=2, **fields)
    weights = random_weights(plain, 3) | random_weights(changed, 3)
    logits = [reference_logits(spec, weights, IDS[:64]) for spec in (plain, changed)]
    assert np.abs(logits[0] - logits[1]).max() > 1e-2


def test_a_sink_takes_its_share_from_all_that_is_seen() -> None:
    q, k, v = np.random.default_rng(2).standard_normal((3, 1, 40, 16), dtype=np.float32)
    layer = random_spec(heads=1, kv_heads=1, sinks=True).layers[0]
    plain = attend(q, k, v, layer)
    assert np.array_equal(attend(q, k, v, layer, np.float32([-1e9])), plain)
    assert not attend(q, k, v, layer, np.float32([200.0])).any()
    # The first position sees itself alone: its share is e^score / (e^score + e^sink).
    score = float(q[0, 0] @ k[0, 0]) / 4
    share = np.exp(score) / (np.exp(score) + np.exp(0.5))
    np.testing.assert_allclose(attend(q, k, v, layer, np.float32([0.5]))[0], v[0, 0] * share, rtol=1e-5)


@pytest.mark.parametrize("ids", [[], [320], [-1], [[1]]])
def test_bad_ids_are_refused(ids: list[int]) -> None:
    spec = random_spec()
    with pytest.raises(ValueError, match="below 320"):
        reference_logits(spec, random_weights(spec, 0), ids)
