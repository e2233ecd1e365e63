from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.invoke import CommandLine


@pytest.fixture
def duologue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(tmp_path, monkeypatch, capsys)
