"""A layer as wide and deep as those of real models: scratch that small ones never fill is too small here or nowhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from duologue.kernels.reference import step as reference
from duologue.models.random_model import random_spec, random_weights
from tests.kernels.isas import ISAS
from tests.kernels.step_case import Ids, Logits, StepCase, reference_decoder

SPEC = random_spec(hidden=2048, layers=1, heads=16, kv_heads=4, head_dim=128, mlp=8192, vocab=203)
ROWS = 70  # more than the few rows whose columns are cut over threads


class ExactLinear(reference.Linear):
    """The same sums in float64, which holds them exactly and has a fast product."""

    def __call__(self, a_codes: npt.NDArray[np.int8], a_scale: Logits) -> Logits:
        acc = a_codes.astype(np.float64) @ self.codes.astype(np.float64).T
        return np.asarray((acc.astype(np.float32) * a_scale[:, None]) * self.scale[None, :])


@pytest.fixture(scope="module")
def weights() -> dict[str, npt.NDArray[np.float32]]:
    return random_weights(SPEC, 9)


@pytest.fixture(scope="module")
def tokens() -> Ids:
    return np.random.default_rng(3).integers(0, SPEC.vocab_size, ROWS).astype(np.int32)


@pytest.fixture(scope="module")
def expected(weights: dict[str, npt.NDArray[np.float32]], tokens: Ids) -> Logits:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "Linear", ExactLinear)
        return reference.forward(reference_decoder(SPEC, weights), tokens)


@pytest.mark.parametrize("isa", ISAS)
def test_a_wide_and_deep_layer_equals_the_reference(
    isa: str, weights: dict[str, npt.NDArray[np.float32]], tokens: Ids, expected: Logits
) -> None:
    """Once the scratch of every matrix product was sized for the deepest, though shallow ones block more rows."""
    case = StepCase(SPEC, weights, threads=2, isa=isa, pages=4)
    np.testing.assert_array_equal(case.run(tokens, [ROWS]), expected)
