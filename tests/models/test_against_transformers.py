"""Our float32 reference against transformers: an independent implementation of the same architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duologue.kernels.rows import quantize_rows
from duologue.models.hf_checkpoint import read_hf_folder
from duologue.models.random_model import write_random_llama
from duologue.models.reference import reference_logits
from tests.kernels.step_case import StepCase

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
    )
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
    # and P add little. Measured: 0.013 and 0.019.
    assert 1.2 * weights_alone < error(logits) < 1.7 * weights_alone
    assert error(logits) < 0.03


def _rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    codes, scale = quantize_rows(values)
    rounded: npt.NDArray[np.float32] = codes.astype(np.float32) * scale[:, None]
    return rounded
