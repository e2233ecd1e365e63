"""Our float32 reference against transformers: an independent implementation of the same architecture."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duologue.kernels.rows import quantize_rows
from duologue.models.hf_checkpoint import read_hf_folder
from duologue.models.random_model import write_random_llama
from duologue.models.reference import reference_logits
from duologue.models.spec import ModelSpec
from tests.kernels.step_case import StepCase
from tests.models.family_case import (
    GEMMA2,
    GEMMA3,
    LLAMA3,
    LLAMA3_SCALING,
    MISTRAL,
    QWEN2,
    QWEN3,
    write_family,
)

pytestmark = pytest.mark.torch

SHAPES: dict[str, dict[str, Any]] = {
    "mha": {"kv_heads": 4},
    "gqa": {"kv_heads": 2, "head_dim": 32, "layers": 3},
    "mqa tied": {"kv_heads": 1, "tied_head": True},
    "other base, fp16": {"kv_heads": 2, "rope_base": 100000.0, "dtype": "float16"},
    "bf16": {"kv_heads": 2, "dtype": "bfloat16"},
}
TOKENS = 200


def transformers_logits(folder: Path, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_float_logits(tmp_path: Path, shape: dict[str, Any]) -> None:
    folder = write_random_llama(tmp_path / "tiny", seed=11, **shape)
    checkpoint = read_hf_folder(folder)
    ids = np.random.default_rng(1).integers(0, checkpoint.spec.vocab_size, TOKENS)
    expected = transformers_logits(folder, ids)
    logits = reference_logits(checkpoint.spec, checkpoint.weights, ids)
    assert expected.std() > 0.5
    assert np.abs(logits - expected).max() < 1e-4  # measured: 1.1e-5


COMMON = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "max_position_embeddings": 512,
    "sliding_window": 24,
}  # fmt: skip
GEMMA = COMMON | {"query_pre_attn_scalar": 24, "num_key_value_heads": 2, "head_dim": 32}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
ROPE_BY_KIND = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
PLAIN = {name: value for name, value in COMMON.items() if name != "sliding_window"} | {"num_hidden_layers": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("LlamaConfig", PLAIN | {"num_key_value_heads": 4}),
    "llama 3": (
        "LlamaConfig",
        PLAIN
        | {
            "num_key_value_heads": 2,
            "head_dim": 32,
            "rope_parameters": {**LLAMA3_SCALING, "rope_theta": 5e5},
        },
    ),
    "llama, scaled linearly": (
        "LlamaConfig",
        PLAIN | {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    ),
    "smollm2": (
        "LlamaConfig",
        PLAIN
        | {"num_key_value_heads": 1, "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 1e5}},
    ),
    "qwen2": ("Qwen2Config", PLAIN | {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2 with windows": (
        "Qwen2Config",
        COMMON
        | {
            "num_key_value_heads": 2,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3Config", PLAIN | {"num_key_value_heads": 2, "head_dim": 32}),
    "qwen3 with windows": (
        "Qwen3Config",
        COMMON
        | {"num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2, "use_sliding_window": True}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mistral": ("MistralConfig", COMMON | {"num_key_value_heads": 2, "num_hidden_layers": 2}),
    "mistral without a window": (
        "MistralConfig",
        COMMON | {"num_key_value_heads": 1, "num_hidden_layers": 2, "sliding_window": None},
    ),
    "gemma2": ("Gemma2Config", GEMMA | {"num_hidden_layers": 4}),
    "gemma2, tight caps": (
        "Gemma2Config",
        GEMMA | {"num_hidden_layers": 2, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
    ),
    "gemma3": ("Gemma3TextConfig", GEMMA | {"num_hidden_layers": 7}),
    "gemma3, scaled, mqa": (
        "Gemma3TextConfig",
        GEMMA | {"num_hidden_layers": 7, "num_key_value_heads": 1, "rope_parameters": ROPE_BY_KIND},
    ),
    "gemma3, other layer types": (
        "Gemma3TextConfig",
        GEMMA
        | {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"]}
        | {"final_logit_softcapping": 5.0},
    ),
    "gemma3 that sees": ("Gemma3Config", GEMMA | {"num_hidden_layers": 7}),
}
VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip


def save_family(folder: Path, name: str, settings: dict[str, Any]) -> Path:
    """A random model of a configuration class, saved by transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sees = name == "Gemma3Config"
    config = getattr(transformers, name)(
        **({"text_config": settings, "vision_config": VISION, "mm_tokens_per_image": 4} if sees else settings)
    )
    kind = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            # Norms begin at what leaves values as they are, 1 or 0; logits are to spread over several units.
            norm = parameter.ndim < 2
            parameter.copy_(parameter + 0.1 * values if norm else 1.5 * values / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_families_as_transformers_saves_them(tmp_path: Path, family: tuple[str, dict[str, Any]]) -> None:
    folder = save_family(tmp_path / "tiny", *family)
    checkpoint = read_hf_folder(folder)
    ids = np.random.default_rng(1).integers(0, checkpoint.spec.vocab_size, TOKENS)
    expected = transformers_logits(folder, ids)
    logits = reference_logits(checkpoint.spec, checkpoint.weights, ids)
    assert expected.std() > 0.5
    assert np.abs(logits - expected).max() < 1e-4  # measured: 2.4e-5
    # A window that counts one position more or less is another model.
    for step in (-1, 1):
        layers = (
            dataclasses.replace(layer, window=layer.window + step) if layer.window else layer
            for layer in checkpoint.spec.layers
        )
        other = dataclasses.replace(checkpoint.spec, layers=tuple(layers))
        if other != checkpoint.spec:
            assert np.abs(reference_logits(other, checkpoint.weights, ids) - expected).max() > 1e-2


@pytest.mark.parametrize("newer", [True, False], ids=["newer", "older"])
@pytest.mark.parametrize(
    "spec", [LLAMA3, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3], ids=lambda spec: spec.architecture
)
def test_both_spellings_are_read_as_transformers_reads_them(
    tmp_path: Path, spec: ModelSpec, newer: bool
) -> None:
    folder = write_family(tmp_path / "tiny", spec, newer=newer)
    checkpoint = read_hf_folder(folder)
    ids = np.random.default_rng(1).integers(0, spec.vocab_size, TOKENS)
    expected = transformers_logits(folder, ids)
    assert expected.std() > 0.5
    assert np.abs(reference_logits(checkpoint.spec, checkpoint.weights, ids) - expected).max() < 1e-4


@pytest.mark.parametrize("kind", ["mha", "gqa", "mqa tied"])
def test_int8_logits_are_off_by_what_rounding_explains(tmp_path: Path, kind: str) -> None:
    folder = write_random_llama(tmp_path / "tiny", seed=11, **SHAPES[kind])
    checkpoint = read_hf_folder(folder)
    spec, weights = checkpoint.spec, checkpoint.weights
    ids = np.random.default_rng(1).integers(0, spec.vocab_size, TOKENS)
    expected = transformers_logits(folder, ids)

    def error(logits: npt.NDArray[np.float32]) -> float:
        return float(np.sqrt(np.mean((logits - expected) ** 2)) / expected.std())

    rounded = {name: _rounded(values) if values.ndim == 2 else values for name, values in weights.items()}
    weights_alone = error(reference_logits(spec, rounded, ids))
    case = StepCase(spec, weights, pages=8)
    [logits] = case.step([(case.sequence(ids.astype(np.int32)), TOKENS)])
    # Activations are rounded as finely as weights, so both errors together are about sqrt(2) of one; K, V
    # and P add little. Measured: 0.013 and 0.019, with a tied head 0.021 and 0.031.
    assert 1.2 * weights_alone < error(logits) < 1.7 * weights_alone
    assert error(logits) < 0.035


def _rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    codes, scale = quantize_rows(values)
    rounded: npt.NDArray[np.float32] = codes.astype(np.float32) * scale[:, None]
    return rounded
