from __future__ import annotations

from pathlib import Path

import pytest

from duologue.engine.load import load_for_engine
from duologue.models.checkpoint import Checkpoint
from duologue.models.packed_model import PackedModel
from duologue.models.source import resolve


@pytest.fixture(scope="package")
def tiny_checkpoint(tiny_model_dir: Path) -> Checkpoint:
    return resolve(tiny_model_dir).read()


@pytest.fixture(scope="package")
def tiny_packed(tiny_model_dir: Path) -> PackedModel:
    return load_for_engine(tiny_model_dir)
