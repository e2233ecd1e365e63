"""A server for other projects' clients: a random model whose template knows functions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duologue import Engine
from duologue.models.random_model import write_random_llama
from tests.server.conftest import RunningServer, running_server
from tests.server.tool_template import HERMES, give_template


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = write_random_llama(tmp_path_factory.mktemp("clients") / "tooled", kv_heads=2, seed=3)
    give_template(folder, HERMES)
    with (
        Engine.load(folder, kv_memory_bytes=8 << 20, threads=1) as engine,
        running_server(engine) as server,
    ):
        yield server
