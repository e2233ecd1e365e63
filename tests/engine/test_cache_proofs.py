"""About half a percent of the long proofs; the whole of them is `scripts/prove_cache.py`."""

from __future__ import annotations

from duologue.models.packed_model import PackedModel
from tests.engine.cache_proofs import prove_exact, soak


def test_smollm2_hits_equal_misses(smollm2: PackedModel) -> None:
    print(prove_exact(smollm2, 1))


def test_memory_does_not_grow() -> None:
    print(soak(5_000))
