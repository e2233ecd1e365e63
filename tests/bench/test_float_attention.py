from __future__ import annotations

import numpy as np
import pytest

from duologue.bench.perplexity import LogitReader
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights
from duologue.models.reference import reference_logits

IDS = np.random.default_rng(2).integers(0, 320, 300)  # more than one chunk

SPECS = {
    "gqa": random_spec(kv_heads=2),
    "mqa tied": random_spec(kv_heads=1, tied_head=True),
    "shared KV": random_spec(kv_heads=2, layers=4, kv_owners=[None, None, 1, 0]),
}


@pytest.mark.parametrize("kind", SPECS)
def test_what_remains_is_the_error_of_weights_and_activations(kind: str) -> None:
    spec = SPECS[kind]
    weights = random_weights(spec, 5)
    model = PackedModel("random", spec, pack_model(spec, weights), b"")
    expected = reference_logits(spec, weights, IDS)

    def logits(float_attention: bool) -> np.ndarray:
        reader = LogitReader(model, threads=1, float_attention=float_attention)
        return np.concatenate([chunk.copy() for chunk in reader.read(IDS.tolist())])

    apart, whole = logits(True), logits(False)
    assert apart.shape == whole.shape == expected.shape
    # The two share every map, so they are nearer to each other than either is to the float model.
    assert 0 < _rms(apart - whole) < _rms(apart - expected) < 0.1 * expected.std()


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))
