"""A server for other projects' clients: a random model whose template knows functions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.conftest import RunningServer
from tests.server.tool_template import serve_tools


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve_tools(tmp_path_factory.mktemp("clients") / "tooled") as server:
        yield server
