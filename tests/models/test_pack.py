from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from duologue.errors import UnsupportedModelError
from duologue.kernels.gemm import Epilogue, gemm_int8, gemm_int8_accumulators
from duologue.kernels.rows import quantize_rows, silu_mul
from duologue.models.checkpoint import Weights
from duologue.models.pack import down_weights, layer_weights, pack_model, packed_weight
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights
from duologue.models.rope import cos_sin, llama3_divisors, rope_kinds, rope_tables
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
    arrays = pack_model(SPEC, WEIGHTS)
    packed = layer_weights(arrays, SPEC, 1)
    own = {name: WEIGHTS[f"layers.1.{name}"] for name in ("q", "k", "v", "output", "gate", "up", "down")}
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 48), dtype=np.float32)
    a, a_scale = quantize_rows(x)
    qkv = np.concatenate([product(x, own[name]) for name in ("q", "k", "v")], axis=1)
    assert np.array_equal(gemm_int8(a, a_scale, packed["qkv"]), qkv)
    gated = gemm_int8(a, a_scale, packed["gate_up"], Epilogue.GATED_SILU)
    assert np.array_equal(gated, silu_mul(product(x, own["gate"]), product(x, own["up"])))
    (down,) = down_weights(arrays, SPEC, 1)
    for weight, name, depth in ((packed["output"], "output", 64), (down, "down", 80)):
        x = generator.standard_normal((5, depth), dtype=np.float32)
        assert np.array_equal(gemm_int8(*quantize_rows(x), weight), product(x, own[name]))


def test_groups_of_the_down_projection_are_its_columns_under_one_scale() -> None:
    spec = random_spec(mlp=128)
    weights = random_weights(spec, 0)
    groups = down_weights(pack_model(spec, weights), spec, 1)
    codes, scale = quantize_rows(weights["layers.1.down"])
    a = np.random.default_rng(0).integers(-127, 128, (5, 128), dtype=np.int8)
    whole = a.astype(np.int32) @ codes.astype(np.int32).T
    parts = [
        gemm_int8_accumulators(part, group)[:, : spec.hidden_size]
        for part, group in zip(np.split(a, 4, axis=1), groups, strict=True)
    ]
    assert np.array_equal(np.add.reduce(parts), whole)
    for group in groups:
        assert group.k == 32
        assert np.array_equal(group.scale[: spec.hidden_size], scale)


def test_a_model_trained_in_int8_has_one_scale_per_row() -> None:
    spec = dataclasses.replace(random_spec(mlp=128), native_int8=True)
    (down,) = down_weights(pack_model(spec, random_weights(spec, 0)), spec, 0)
    assert down.k == 128


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
    assert rope_kinds(spec) == [(10000.0, 1.0, 16, ())]
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


def test_llama_3_slows_pairs_down_by_their_wavelength() -> None:
    divisors = llama3_divisors(5e5, 64, 8.0, 1.0, 4.0, 8192.0)
    kinds = set()
    for i, divisor in enumerate(divisors):
        wavelength = 2 * np.pi * 5e5 ** (2 * i / 64)
        kind = 0 if wavelength < 8192 / 4 else 2 if wavelength > 8192 else 1
        share = (8192 / wavelength - 1) / (4 - 1)
        frequency = (1.0, (1 - share) / 8 + share, 1 / 8)[kind]
        assert divisor == pytest.approx(1 / frequency, rel=1e-12)
        kinds.add(kind)
    assert kinds == {0, 1, 2}
    assert set(llama3_divisors(5e5, 64, 8.0, 2.0, 2.0, 8192.0)) == {1.0, 8.0}


def test_a_factor_divides_positions() -> None:
    plain = rope_tables(10000.0, 32, 500)
    for factor in (1.0, 8.0, 2.5):
        for table, scaled in zip(plain, rope_tables(10000.0, 32, 4000, factor), strict=True):
            step = round(2 * factor)  # positions that land on whole ones
            assert np.array_equal(scaled[::step][:250], table[::2])
    for table, scaled in zip(
        plain, rope_tables(10000.0, 32, 2000, divisors=(4.0,) * 8 + (1.0,) * 8), strict=True
    ):
        assert np.array_equal(scaled[::4, :8], table[:, :8])
        assert np.array_equal(scaled[:500, 8:], table[:, 8:])
    spec = random_spec(rope_factor=8.0, windows=[8, 0], local_rope_base=500.0)
    assert rope_kinds(spec) == [(500.0, 1.0, 16, ()), (10000.0, 8.0, 16, ())]


@pytest.mark.parametrize(("base", "head_dim", "positions"), [(10000.0, 64, 8192), (500000.0, 128, 40_000)])
def test_rope_tables_are_the_correctly_rounded_cosines_and_sines(
    base: float, head_dim: int, positions: int
) -> None:
    exponent = np.arange(0, head_dim, 2, dtype=np.longdouble) / head_dim
    frequency = (np.longdouble(base) ** -exponent).astype(np.float64)
    angle = np.arange(positions)[:, None] * frequency
    for table, expected in zip(
        rope_tables(base, head_dim, positions), (np.cos(angle), np.sin(angle)), strict=True
    ):
        # A value within 1e-15 of the middle between two float32 may be rounded either way.
        assert (table != expected.astype(np.float32)).mean() < 1e-5
        np.testing.assert_allclose(table, expected, rtol=6e-8, atol=1e-15)


def test_rope_angles_far_out_keep_float64_precision() -> None:
    angle = np.concatenate([np.linspace(0, 2**20, 100_001), np.arange(1000) * (np.pi / 4)])
    for got, expected in zip(cos_sin(angle), (np.cos(angle), np.sin(angle)), strict=True):
        assert np.abs(got - expected).max() < 1e-15


def test_rope_tables_are_these_bits_on_every_machine() -> None:
    digest = hashlib.sha256(
        b"".join(table.tobytes() for table in rope_tables(100000.0, 64, 5000))
    ).hexdigest()
    assert digest == "30e384109ea60f1e273d00df4e042c101454ac808879c3226dcd6cd874d26cef"


def test_weights_too_deep_for_int32_are_named() -> None:
    spec = random_spec(hidden=16, layers=1, heads=1, kv_heads=1, mlp=66_320, vocab=8, context_tokens=2)
    weights: Weights = random_weights(spec, 0)
    with pytest.raises(UnsupportedModelError, match=r"weight layers\.0\.down \[16, 66320\] cannot be packed"):
        pack_model(spec, weights)


@pytest.mark.parametrize(
    "name",
    [
        "final_norm",
        "embedding_channels",
        "layers.0.attention_norm",
        "layers.1.mlp_norm",
        "layers.0.attention_post_norm",
        "layers.1.mlp_post_norm",
        "layers.0.q_norm",
        "layers.1.k_norm",
        "layers.0.sinks",
        "layers.1.key_offset",
    ],
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_vector_that_is_not_finite_is_named(name: str, value: float) -> None:
    layers = tuple(
        dataclasses.replace(layer, post_norms=True, qk_norm=True, sinks=True) for layer in SPEC.layers
    )
    spec = dataclasses.replace(SPEC, layers=layers)
    weights = random_weights(spec, 0)
    weights["embedding_channels"] = np.ones(48, dtype=np.float32)
    weights |= {f"layers.{i}.key_offset": np.zeros(32, dtype=np.float32) for i in range(2)}
    pack_model(spec, weights)
    weights[name][-1] = value
    with pytest.raises(ValueError, match=f"^{name} holds a NaN or an infinity"):
        pack_model(spec, weights)


def test_arrays_of_another_spec_are_refused() -> None:
    arrays = pack_model(SPEC, WEIGHTS)
    other = ModelSpec.from_json(SPEC.to_json().replace('"vocab_size":70', '"vocab_size":700'))
    with pytest.raises(ValueError, match="do not fit"):
        PackedModel("m", other, arrays, b"").native()
    with pytest.raises(KeyError, match=r"no\.codes"):
        packed_weight(arrays, "no", 1, 1)
