from __future__ import annotations

import numpy as np
import pytest

from duologue.errors import UnsupportedModelError
from duologue.kernels.gemm import Epilogue, gemm_int8
from duologue.kernels.rows import quantize_rows, silu_mul
from duologue.models.checkpoint import Weights
from duologue.models.pack import layer_weights, pack_model, packed_weight
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights
from duologue.models.rope import rope_kinds, rope_tables
from duologue.models.spec import ModelSpec

SPEC = random_spec(hidden=48, heads=4, kv_heads=2, head_dim=16, mlp=80, vocab=70, context_tokens=33)
WEIGHTS = random_weights(SPEC, 2)


def product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x W^T as int8 computes it."""
    a, a_scale = quantize_rows(x)
    w, w_scale = quantize_rows(weight)
    acc = a.astype(np.int32) @ w.astype(np.int32).T
    return (acc.astype(np.float32) * a_scale[:, None]) * w_scale[None, :]


def test_packed_maps_compute_what_their_weights_do() -> None:
    packed = layer_weights(pack_model(SPEC, WEIGHTS), SPEC, 1)
    own = {name: WEIGHTS[f"layers.1.{name}"] for name in ("q", "k", "v", "output", "gate", "up", "down")}
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 48), dtype=np.float32)
    a, a_scale = quantize_rows(x)
    qkv = np.concatenate([product(x, own[name]) for name in ("q", "k", "v")], axis=1)
    assert np.array_equal(gemm_int8(a, a_scale, packed["qkv"]), qkv)
    gated = gemm_int8(a, a_scale, packed["gate_up"], Epilogue.GATED_SILU)
    assert np.array_equal(gated, silu_mul(product(x, own["gate"]), product(x, own["up"])))
    for name, depth in (("output", 64), ("down", 80)):
        x = generator.standard_normal((5, depth), dtype=np.float32)
        assert np.array_equal(gemm_int8(*quantize_rows(x), packed[name]), product(x, own[name]))


def test_a_tied_model_has_a_head_of_its_own_only_when_given_one() -> None:
    spec = random_spec(tied_head=True)
    weights = random_weights(spec, 0)
    tied = pack_model(spec, weights)
    assert "head.codes" not in tied
    apart = pack_model(spec, {**weights, "head": weights["embedding"] * np.float32(2)})
    assert np.array_equal(apart["head.codes"], tied["embedding.codes"])
    assert np.array_equal(apart["head.scale"], tied["embedding.scale"] * 2)
    for arrays in (tied, apart):
        PackedModel("m", spec, arrays, b"").native()


def test_every_array_is_a_whole_number_of_cache_lines() -> None:
    for name, array in pack_model(SPEC, WEIGHTS).items():
        assert array.nbytes % 64 == 0, name


def test_layers_that_share_kv_have_queries_only() -> None:
    spec = random_spec(layers=3, kv_owners=[None, 0, None], windows=[8, 8, 0])
    model = PackedModel("m", spec, pack_model(spec, random_weights(spec, 0)), b"")
    assert layer_weights(model.arrays, spec, 1)["qkv"].n == 64
    native = model.native()
    assert native.local_page_bytes == native.global_page_bytes > 0  # layers 0 and 2 own KV of one size each


def test_layers_share_rope_tables_of_one_kind() -> None:
    spec = random_spec(layers=3)
    assert rope_kinds(spec) == [(10000.0, 16)]
    assert sum(name.startswith("rope.") for name in pack_model(spec, random_weights(spec, 0))) == 2


def test_rope_tables_turn_pair_i_by_position_over_base() -> None:
    cos, sin = rope_tables(10000.0, 32, 4001)
    assert cos.shape == sin.shape == (4001, 16)
    assert cos.dtype == sin.dtype == np.float32
    angle = 4000 * 10000.0 ** (-2 * 5 / 32)
    assert cos[4000, 5] == np.float32(np.cos(angle))
    assert sin[4000, 5] == np.float32(np.sin(angle))
    assert (cos[0] == 1).all()
    assert (sin[0] == 0).all()


def test_weights_too_deep_for_int32_are_named() -> None:
    spec = random_spec(hidden=16, layers=1, heads=1, kv_heads=1, mlp=66_320, vocab=8, context_tokens=2)
    weights: Weights = random_weights(spec, 0)
    with pytest.raises(UnsupportedModelError, match=r"weight layers\.0\.down \[16, 66320\] cannot be packed"):
        pack_model(spec, weights)


def test_arrays_of_another_spec_are_refused() -> None:
    arrays = pack_model(SPEC, WEIGHTS)
    other = ModelSpec.from_json(SPEC.to_json().replace('"vocab_size":70', '"vocab_size":700'))
    with pytest.raises(ValueError, match="do not fit"):
        PackedModel("m", other, arrays, b"").native()
    with pytest.raises(KeyError, match=r"no\.codes"):
        packed_weight(arrays, "no", 1, 1)
