"""The command line's frame: help without heavy imports, and errors in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import duologue
from duologue.cli.main import _COMMANDS, cli
from tests.cli.processes import command, environment, run


def test_version() -> None:
    assert run("--version").stdout == f"duologue {duologue.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serve", "--help"], ["chat", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    heavy = ("numpy", "pydantic", "starlette", "uvicorn", "tokenizers", "jinja2", "rich", "prometheus_client")
    script = (
        "import sys\n"
        "from duologue.cli.main import main\n"
        "try: main()\n"
        f"finally: print('imported', [name for name in {heavy} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0
    assert result.stdout.endswith("imported []\n"), result.stdout


def test_the_table_of_commands_says_what_the_commands_say() -> None:
    context = cli.make_context("duologue", [], resilient_parsing=True)
    for name, (_, _, text) in _COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help is not None
        assert text[:20].split(" ")[0] == command.help.split(" ")[0]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["serve", "no-such-model", "--port", "0"], 1, "no-such-model"),
        (["chat", "no-such-model"], 1, "no-such-model"),
        (["chat", "/no/such/file.gguf"], 1, "/no/such/file.gguf"),
    ],
)
def test_expected_errors_are_one_line(arguments: list[str], code: int, says: str, tmp_path: Path) -> None:
    result = run(*arguments, cache=tmp_path)
    assert result.returncode == code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr


def test_an_unknown_instruction_set_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_ISA", "bogus")
    result = run("chat", "no-such-model", cache=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: DUOLOGUE_ISA=bogus is unknown; choose one of: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dance"], "No such command 'dance'"),
        (["serve", "--kv-memory", "lots"], "write for example 1GiB"),
        (["serve", "--port", "70000"], "70000"),
        (["serve", "--threads", "0"], "--threads"),
        (["chat", "--temperature", "-1"], "--temperature"),
        (["chat", "--temperature", "nan"], "not a finite number"),
        (["serve", "--drain-timeout", "nan"], "not a finite number"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("arguments", [("models", "list"), ("config", "show", "serve")])
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command(*arguments),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            timeout=120,
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: no space left on device\n"
