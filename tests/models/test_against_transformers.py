"""Our float32 reference against transformers: an independent implementation of the same architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duologue.models.hf_checkpoint import read_hf_folder
from duologue.models.random_model import write_random_llama
from duologue.models.reference import reference_logits

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
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()
