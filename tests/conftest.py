"""What tests of several packages share: tiny random models on disk, an engine on one of them, and SmolLM2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from duologue.models.fetch import fetch
from duologue.models.random_model import write_random_llama
from duologue.models.registry import MODELS

if TYPE_CHECKING:
    from duologue import Engine


@pytest.fixture(scope="session")
def tiny_model_dirs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Random Hugging Face Llamas with 4 query heads, by how these share KV: `mha`, `gqa`, `mqa`."""
    folder = tmp_path_factory.mktemp("models")
    kv_heads = {"mha": 4, "gqa": 2, "mqa": 1}
    return {
        kind: write_random_llama(folder / f"tiny-{kind}", kv_heads=count, seed=count)
        for kind, count in kv_heads.items()
    }


@pytest.fixture(scope="session")
def tiny_model_dir(tiny_model_dirs: Mapping[str, Path]) -> Path:
    return tiny_model_dirs["gqa"]


@pytest.fixture(scope="session")
def tiny_engine(tiny_model_dir: Path) -> Iterator[Engine]:
    from duologue import Engine

    with Engine.load(tiny_model_dir, kv_memory_bytes=8 << 20, threads=2) as engine:
        yield engine


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file, fetched into the cache folder as `duologue serve` does it."""
    return fetch(MODELS["smollm2-135m"])
