from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from duologue.errors import UnsupportedModelError
from duologue.models.random_model import random_spec
from duologue.models.spec import ModelSpec

SPEC = random_spec(layers=3, kv_heads=2, windows=[0, 8, 8], kv_owners=[None, None, 1])


def test_json_gives_back_the_spec_and_is_canonical() -> None:
    text = SPEC.to_json()
    assert ModelSpec.from_json(text) == SPEC
    assert ModelSpec.from_json(text).to_json() == text


def test_kv_is_counted_for_owners_alone() -> None:
    assert [layer.kv_bytes_per_token for layer in SPEC.layers] == [80, 80, 0]
    assert SPEC.kv_bytes_per_token == 160


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"heads": 0}, "heads 0"),
        ({"kv_heads": 3}, "heads 4 is not a multiple of kv_heads 3"),
        ({"head_dim": 24}, "head_dim 24"),
        ({"head_dim": 272}, "head_dim 272"),
        ({"mlp_size": 24}, "mlp_size 24"),
        ({"window": -1}, "window -1"),
        ({"rope_base": 0.0}, "rope_base 0.0"),
        ({"rope_base": float("nan")}, "rope_base nan"),
        ({"rope_factor": 0.0}, "rope_factor 0.0"),
        ({"rope_divisors": (1.0,) * 4}, r"rope_divisors has 4 entries, not head_dim / 2 = 8"),
        ({"rope_divisors": (1.0,) * 7 + (0.0,)}, "rope_divisors must be positive"),
        ({"softmax_scale": -1.0}, "softmax_scale -1.0"),
        ({"attention_softcap": -1.0}, "attention_softcap -1.0"),
        ({"qkv_clamp": float("inf")}, "qkv_clamp inf"),
        ({"mlp_clamp": -0.5}, "mlp_clamp -0.5"),
        ({"mlp": "gelu"}, "mlp 'gelu' is not one of gated_silu, gated_gelu, relu2"),
    ],
)
def test_a_layer_that_cannot_be_run_names_the_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        dataclasses.replace(SPEC.layers[0], **changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layers": ()}, "no layers"),
        ({"vocab_size": 0}, "vocab_size 0"),
        ({"hidden_size": 24}, "hidden_size 24"),
        ({"context_tokens": 1 << 40}, "context_tokens 1099511627776 is more than"),
        ({"norm_eps": float("nan")}, "norm_eps nan"),
        ({"embedding_scale": 0.0}, "embedding_scale 0.0"),
        ({"logit_softcap": -1.0}, "logit_softcap -1.0"),
        ({"layers": SPEC.layers[::-1]}, "layer 0: kv_owner 1 is not an earlier layer"),
        (
            {"layers": (SPEC.layers[0], SPEC.layers[0], SPEC.layers[2], SPEC.layers[2])},
            r"layer 2: kv_owner 1 is of another kind \(window 0, not 8\)",
        ),
    ],
)
def test_a_model_that_contradicts_itself_names_the_field(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        dataclasses.replace(SPEC, **changes)
