"""Property-based requests made from the OpenAPI document find nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue import Engine
from duologue.models.random_model import write_random_llama
from tests.server.conftest import RunningServer, running_server
from tests.server.tool_template import HERMES, give_template

# Which fields exclude each other JSON Schema cannot say: valid data is refused with a 400 that the document names.
_LEFT_OUT = "positive_data_acceptance"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[RunningServer]:
    """A short context keeps replies without a limit short."""
    folder = give_template(write_random_llama(tmp_path / "small", kv_heads=2, context_tokens=128), HERMES)
    with (
        Engine.load(folder, kv_memory_bytes=4 << 20, threads=1) as engine,
        running_server(engine) as server,
    ):
        yield server


@pytest.mark.clients
@pytest.mark.timeout(900)
def test_nothing_is_found(small: RunningServer, tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("schemathesis"))
    options = ["--seed", "1", "--max-examples", "30", "--no-color", "--exclude-checks", _LEFT_OUT]
    done = subprocess.run(
        [command, "run", small.url + "openapi.json", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Tested: 1" in done.stdout
    small.wait_idle()
