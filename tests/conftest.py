"""What tests of several packages share: tiny random models on disk, an engine on one of them, and SmolLM2."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from duologue.models.fetch import fetch
from duologue.models.random_model import write_random_llama
from duologue.models.registry import MODELS
from duologue.models.store import CACHE_VARIABLE
from tests.models.hub_case import Hub, Repository, serve_hub

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


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test alone, which does not exist yet."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def hub_server() -> Iterator[Hub]:
    with serve_hub() as hub:
        yield hub


@pytest.fixture
def hub(
    hub_server: Hub, cache: Path, tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Hub:
    """A hub on this machine that has `tiny-org/tiny`, for a user without a token."""
    monkeypatch.setenv("HF_ENDPOINT", hub_server.url)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    repository = Repository(shutil.copytree(tiny_model_dir, tmp_path / "repository"))
    hub_server.repositories = {"tiny-org/tiny": repository}
    hub_server.requests.clear()
    hub_server.cut.clear()
    hub_server.damaged.clear()
    hub_server.failing = False
    return hub_server
