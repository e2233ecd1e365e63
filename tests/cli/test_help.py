"""Every command explains itself: help, examples that can be typed, and docs/cli.md as the commands are."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from duologue.cli.config_keys import leaf_commands
from duologue.cli.examples import HEADING
from duologue.cli.main import cli
from tests.cli.processes import environment, run

_ROOT = Path(__file__).parents[2]
_LEAVES = list(leaf_commands(cli, click.Context(cli)))


def _groups(group: click.Group) -> list[click.Group]:
    ctx = click.Context(group)
    inner = [group.get_command(ctx, name) for name in group.list_commands(ctx)]
    return [group, *(g for command in inner if isinstance(command, click.Group) for g in _groups(command))]


def _examples(command: click.Command) -> list[str]:
    lines = [line.strip() for line in (command.epilog or "").split("\n")]
    return [line for line in lines if line not in ("\b", HEADING, "")]


@pytest.mark.parametrize(
    "command", [*(command for _, command in _LEAVES), *_groups(cli)], ids=lambda c: str(c.name)
)
def test_examples_can_be_typed(
    command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUOLOGUE_CONFIG", "/dev/null")
    (tmp_path / "model-q8_0.gguf").touch()  # a file that must exist
    lines = _examples(command)
    assert lines, f"{command.name} has no examples: pass epilog=examples(...)"
    for line in lines:
        typed = re.search(
            r"duologue\b([^|>#)]*)", line
        )  # of lines that also pipe, redirect or carry a comment
        assert typed is not None
        words = shlex.split(typed[1])
        named: click.Command | None = cli
        while isinstance(named, click.Group):
            _, named, words = named.resolve_command(click.Context(named), words)
        assert named is not None
        named.make_context(str(named.name), words, parent=click.Context(cli)).close()


@pytest.mark.parametrize("path", [path for path, _ in _LEAVES], ids=" ".join)
def test_help_fits_and_shows_the_examples_as_they_are(path: tuple[str, ...]) -> None:
    command = dict(_LEAVES)[path]
    text = command.get_help(click.Context(command, info_name=" ".join(path), max_content_width=80))
    for example in _examples(command):
        assert f"    {example}" in text.split("\n")
    assert command.help
    assert all(len(line) <= 80 for line in text.partition(HEADING)[0].split("\n"))


def test_no_help_imports_anything_heavy() -> None:
    heavy = (
        "numpy",
        "pydantic",
        "starlette",
        "uvicorn",
        "tokenizers",
        "jinja2",
        "rich",
        "platformdirs",
        "duologue.kernels",
    )
    script = (
        "import sys, click\n"
        "from duologue.cli.main import cli\n"
        "from duologue.cli.config_keys import leaf_commands\n"
        "for path, command in leaf_commands(cli, click.Context(cli)): command.get_help(click.Context(command))\n"
        f"print([name for name in {heavy} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "[]\n", result.stderr


def test_the_reference_is_up_to_date() -> None:
    command = [sys.executable, str(_ROOT / "scripts" / "write_cli_docs.py"), "--check"]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("duologue serve sm", "smollm2-135m"),
        ("duologue chat gem", "gemma3-270m"),
        ("duologue doctor sm", "smollm2-135m"),
        ("duologue serve --kv", "--kv-memory"),
        ("duologue do", "doctor"),
        ("duologue config i", "init"),
    ],
)
def test_completion(line: str, offered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DUOLOGUE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    result = run()
    assert offered in [answer.partition(",")[2] for answer in result.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = run("completion", shell)
    assert result.returncode == 0, result.stderr
    assert f"_DUOLOGUE_COMPLETE={shell}_complete" in result.stdout
