"""Engines for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.engine.load import load_for_engine
from duologue.models.packed_model import PackedModel


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> PackedModel:
    """SmolLM2-135M-Instruct, packed."""
    return load_for_engine(smollm2_path)


@pytest.fixture(scope="session")
def tiny_gqa(tiny_model_dir: Path) -> PackedModel:
    """One of the random Llamas, packed."""
    return load_for_engine(tiny_model_dir)


@pytest.fixture(params=["mha", "gqa", "mqa"], scope="session")
def tiny_model(request: pytest.FixtureRequest, tiny_model_dirs: dict[str, Path]) -> Iterator[PackedModel]:
    """A random Llama of each KV shape, packed."""
    return load_for_engine(tiny_model_dirs[request.param])
