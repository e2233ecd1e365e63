"""Write the reference part of docs/cli.md from the commands' own definitions; `--check` only tells whether it is up to date."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from duologue.cli.config_keys import OTHER_VARIABLES, leaf_commands, option_key
from duologue.cli.examples import HEADING
from duologue.cli.main import cli

DOCUMENT = Path(__file__).parents[1] / "docs" / "cli.md"
MARKER = "<!-- From here on written by scripts/write_cli_docs.py: change the commands, not this. -->"


def reference() -> str:
    """Markdown of every command: its usage, help, arguments, options and examples."""
    root = click.Context(cli, info_name="duologue")
    lines = ["## Variables that are no command's option", "", "| variable | what it sets |", "|---|---|"]
    lines += [f"| `{name}` | {what} |" for name, what in OTHER_VARIABLES.items()]
    for path, command in leaf_commands(cli, root):
        lines += ["", f"## duologue {' '.join(path)}", "", *_command(" ".join(path), command, root)]
    return "\n".join(lines) + "\n"


def _command(name: str, command: click.Command, root: click.Context) -> Iterator[str]:
    ctx = click.Context(command, info_name=name, parent=root)
    yield f"    duologue {name} {' '.join(command.collect_usage_pieces(ctx))}"
    yield ""
    yield from inspect.cleandoc(command.help or "").split("\n")
    rows = [
        record
        for param in command.params
        if isinstance(param, click.Option) and option_key(param) != "config"
        if (record := param.get_help_record(ctx)) is not None
    ]
    if rows:
        yield from ("", "| option | |", "|---|---|")
        yield from (f"| `{_cell(flags)}` | {_cell(text)} |" for flags, text in rows)
    lines = [line.strip() for line in (command.epilog or "").split("\n")]
    examples = [line for line in lines if line and line not in ("\b", HEADING)]
    if examples:
        yield ""
        yield from (f"    {line}" for line in examples)


def _cell(text: str) -> str:
    text = text.replace("INTEGER RANGE", "INTEGER").replace(
        "FLOAT RANGE", "NUMBER"
    )  # the range stands beside
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Exit code 1 when `--check` finds the document out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit code 1 if it is not up to date"
    )
    check = parser.parse_args().check
    before = DOCUMENT.read_text(encoding="utf-8")
    introduction = before.partition(MARKER)[0]
    after = f"{introduction}{MARKER}\n\n{reference()}"
    if check and after != before:
        print(f"{DOCUMENT} is not up to date; run {sys.argv[0]}", file=sys.stderr)
        return 1
    if after != before:
        DOCUMENT.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
