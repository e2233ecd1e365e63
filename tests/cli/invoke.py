"""Running the command line inside of this process, where starting one would take most of a test's time."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from duologue.cli.main import main


class CommandLine:
    """Runs `duologue` with a configuration folder of its own and none of the caller's DUOLOGUE_* variables."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for name in list(os.environ):
            if name.startswith("DUOLOGUE_") and name != "DUOLOGUE_CACHE":
                monkeypatch.delenv(name)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        monkeypatch.chdir(folder)

    def __call__(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        self._capsys.readouterr()
        code: object = None
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["duologue", *arguments])
            for name, value in variables.items():
                patch.setenv(name, value)
            try:
                main()
            except SystemExit as exit_:
                code = exit_.code
        out, err = self._capsys.readouterr()
        return (code if isinstance(code, int) else 0), out, err

    def write(self, text: str | bytes, name: str = "settings.toml") -> str:
        data = text.encode() if isinstance(text, str) else text
        (self.folder / name).write_bytes(data)
        return name
