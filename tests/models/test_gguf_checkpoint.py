from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import Checkpoint, weight_shapes
from duologue.models.gguf_checkpoint import permute_rows, read_gguf, unpermute_rows
from duologue.models.random_model import random_spec, random_weights
from duologue.models.reference import reference_logits
from tests.models.gguf_case import TOKENS, Q, write_gguf

SPEC = random_spec(hidden=64, mlp=96, heads=4, kv_heads=2, head_dim=32, rope_base=50000.0)
WEIGHTS = random_weights(SPEC, 7)
# All that the gguf package both quantises and dequantises with blocks that divide these rows.
KINDS = [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1]


def test_a_float32_file_gives_back_every_weight(tmp_path: Path) -> None:
    checkpoint = read_gguf(write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS))
    assert checkpoint.spec.layers == SPEC.layers
    assert checkpoint.spec.context_tokens == SPEC.context_tokens
    assert checkpoint.spec.norm_eps == pytest.approx(SPEC.norm_eps)
    assert not checkpoint.spec.tied_head
    assert checkpoint.weights.keys() == weight_shapes(SPEC).keys()
    for name, values in WEIGHTS.items():
        assert np.array_equal(checkpoint.weights[name], values), name


def test_metadata_is_handed_on_as_plain_values(tmp_path: Path) -> None:
    checkpoint = read_gguf(write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS))
    assert checkpoint.name == "Tiny"
    assert checkpoint.chat_template == "{{ messages }}"
    assert checkpoint.tokenizer_folder is None
    assert checkpoint.tokenizer_metadata == {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0, -1.5, 2.0, 0.25],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_quantised_weights_are_what_the_gguf_package_makes_of_them(tmp_path: Path, kind: Q) -> None:
    names = {name: kind for name, values in WEIGHTS.items() if values.ndim == 2}
    checkpoint = read_gguf(write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS, kinds=names))
    for name in names:
        stored = WEIGHTS[name]
        expected = gguf.quants.dequantize(
            gguf.quants.quantize(stored, kind), kind
        )  # rows are quantised one by one
        assert np.array_equal(checkpoint.weights[name], expected), name
        assert np.abs(checkpoint.weights[name] - stored).max() < np.abs(stored).max() / 4


def test_rows_of_heads_turn_the_same_pairs_as_before_the_permutation() -> None:
    weight = np.arange(2 * 8 * 3, dtype=np.float32).reshape(16, 3)
    interleaved = permute_rows(weight, 2)
    assert np.array_equal(interleaved[0], weight[0])
    assert np.array_equal(interleaved[1], weight[4])  # the pair of row 0 in a head of 8
    assert np.array_equal(unpermute_rows(interleaved, 2), weight)
    assert not np.array_equal(interleaved, weight)


def test_a_missing_output_means_a_tied_head(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS, tensors={"output.weight": None})
    checkpoint = read_gguf(path)
    assert checkpoint.spec.tied_head
    assert "head" not in checkpoint.weights


def test_defaults_of_left_out_entries(tmp_path: Path) -> None:
    left_out = ("rope.freq_base", "rope.dimension_count", "attention.key_length", "attention.value_length")
    spec = random_spec(heads=4, kv_heads=4, head_dim=16)
    metadata = {f"llama.{name}": None for name in (*left_out, "attention.head_count_kv")}
    path = write_gguf(tmp_path / "m.gguf", spec, random_weights(spec, 1), metadata=metadata)
    assert read_gguf(path).spec.layers == spec.layers


@pytest.mark.parametrize(
    ("metadata", "window", "factor"),
    [
        ({"attention.sliding_window": 24}, 24, 1.0),
        ({"attention.sliding_window": 0}, 0, 1.0),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 0, 4.0),
        ({"rope.scaling.factor": 4.0}, 0, 4.0),
        ({"rope.scale_linear": 4.0}, 0, 4.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 0, 1.0),
    ],
)
def test_a_window_and_linear_scaling_are_those_of_all_layers(
    tmp_path: Path, metadata: dict[str, Any], window: int, factor: float
) -> None:
    named = {f"llama.{name}": value for name, value in metadata.items()}
    layers = read_gguf(write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS, metadata=named)).spec.layers
    assert {(layer.window, layer.rope_factor) for layer in layers} == {(window, factor)}


def test_settings_may_differ_by_layer(tmp_path: Path) -> None:
    weights = {name: values for name, values in WEIGHTS.items() if not name.startswith("layers.1.")}
    other = random_spec(layers=1, mlp=32, heads=4, kv_heads=2, head_dim=32)
    weights |= {
        name.replace("layers.0.", "layers.1."): values
        for name, values in random_weights(other, 3).items()
        if name.startswith("layers.")
    }
    path = write_gguf(tmp_path / "m.gguf", SPEC, weights, metadata={"llama.feed_forward_length": [96, 32]})
    assert [layer.mlp_size for layer in read_gguf(path).spec.layers] == [96, 32]


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type = 'yarn'"),
        ({"llama.rope.scaling.attn_factor": 4.0}, "llama.rope.scaling.attn_factor = 4.0"),
        (
            {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": 2},
            "llama.attention.sliding_window_pattern = 2",
        ),
        ({"llama.attention.sliding_window": -8}, "window -8"),
        ({"llama.attention.key_length_swa": 64}, "llama.attention.key_length_swa is 64"),
        ({"llama.rope.dimension_count": 16}, "llama.rope.dimension_count is 16"),
        ({"llama.attention.value_length": 64}, "llama.attention.value_length is 64"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8"),
        ({"llama.attention.head_count": [4, 0]}, "without attention heads"),
        ({"llama.attention.head_count_kv": 3}, "heads 4 is not a multiple of kv_heads 3"),
    ],
)
def test_unsupported_settings_are_named(tmp_path: Path, metadata: dict[str, Any], named: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS, metadata=metadata)
    with pytest.raises(UnsupportedModelError, match=re.escape(named)) as raised:
        read_gguf(path)
    assert str(path) in str(raised.value)
    assert "choose another model" in str(raised.value)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"architecture 'phi3'.*'llama', 'qwen2', 'qwen3', 'gemma2', 'gemma3'"
    ):
        read_gguf(write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS, architecture="phi3"))


@pytest.mark.parametrize(
    ("tensors", "error", "named"),
    [
        ({"blk.1.attn_q.weight": None}, ModelLoadError, r"tensor blk.1.attn_q.weight \[128, 64\] is missing"),
        ({"token_embd.weight": None}, ModelLoadError, "tensor token_embd.weight is missing"),
        (
            {"blk.0.ffn_down.weight": np.zeros((64, 64), np.float32)},
            ModelLoadError,
            r"tensor blk.0.ffn_down.weight has shape \[64, 64\] where \[64, 96\] was expected",
        ),
        (
            {"blk.0.attn_q.bias": np.zeros(128, np.float32)},
            UnsupportedModelError,
            r"tensor blk.0.attn_q.bias .*such a bias is not supported",
        ),
        ({"rope_freqs.weight": np.ones(8, np.float32)}, UnsupportedModelError, "rope_divisors has 8 entries"),
        (
            {"rope_freqs.weight": np.zeros(16, np.float32)},
            UnsupportedModelError,
            "rope_divisors must be positive",
        ),
        (
            {"output_norm.weight": np.full(64, np.nan, np.float32)},
            ModelLoadError,
            "tensor output_norm.weight holds a NaN",
        ),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path,
    tensors: dict[str, npt.NDArray[np.float32] | None],
    error: type[ModelLoadError],
    named: str,
) -> None:
    path = write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS, tensors=tensors)
    with pytest.raises(error, match=named) as raised:
        dict(read_gguf(path).weights)
    assert type(raised.value) is error
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": 10**6}, "llama.block_count is 1000000"),
        ({"llama.context_length": "long"}, "llama.context_length is 'long', not a whole number"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is missing"),
        ({"llama.feed_forward_length": [96, 96, 96]}, "3 entries for 2 layers"),
    ],
)
def test_contradictory_metadata_is_named(tmp_path: Path, metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelLoadError, match=named):
        read_gguf(write_gguf(tmp_path / "m.gguf", SPEC, WEIGHTS, metadata=metadata))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Checkpoint:
    return read_gguf(smollm2_path).loaded()


def test_smollm2_is_described_as_published(smollm2: Checkpoint) -> None:
    spec = smollm2.spec
    assert (spec.vocab_size, spec.hidden_size, spec.context_tokens) == (49152, 576, 8192)
    assert spec.tied_head
    assert len(spec.layers) == 30
    layer = spec.layers[0]
    assert (layer.heads, layer.kv_heads, layer.head_dim, layer.mlp_size) == (9, 3, 64, 1536)
    assert layer.rope_base == 100000.0
    assert len(smollm2.tokenizer_metadata["tokenizer.ggml.tokens"]) == 49152  # type: ignore[arg-type]


def test_smollm2_reads_english_only_with_its_rows_in_order(smollm2: Checkpoint) -> None:
    tokenizer = Tokenizer.from_gguf_metadata(smollm2.tokenizer_metadata)
    ids = tokenizer.encode(
        "Once upon a time, in a small village by the sea, there lived an old fisherman who went out every "
        "morning in his little boat."
    )
    wrong = {
        name: permute_rows(values, len(values) // 64) if name.endswith((".q", ".k")) else values
        for name, values in smollm2.weights.items()
    }
    surprise = []
    for weights in (smollm2.weights, wrong):
        logits = reference_logits(smollm2.spec, weights, ids)[:-1].astype(np.float64)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        surprise.append(-logits[np.arange(len(ids) - 1), ids[1:]].mean())
    assert surprise[0] < 3.0  # nats a token
    assert surprise[1] > surprise[0] + 0.5
