"""Running the command line as users do: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import duologue

# The caller's settings of commands and locale are none of the tests' business; these they may have set themselves.
_OF_THE_TESTS = ("DUOLOGUE_ACCEPT_TERMS", "DUOLOGUE_CACHE", "DUOLOGUE_DEBUG", "DUOLOGUE_ISA")
_MAIN = [sys.executable, "-c", "from duologue.cli.main import main; main()"]


def environment(cache: Path | None = None) -> dict[str, str]:
    """This process's environment, with the package that it tests and, if given, another cache folder.

    With a cache folder of its own the command also forgets what the tests' caller has accepted or set aside for their cache.
    """
    source = str(Path(duologue.__file__).parents[1])
    paths = [source, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = {
        **{k: v for k, v in os.environ.items() if k in _OF_THE_TESTS or not k.startswith("DUOLOGUE_")},
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "COLUMNS": "100",
        "DUOLOGUE_CONFIG": os.devnull,
    }
    if cache is not None:
        variables.pop("DUOLOGUE_ACCEPT_TERMS", None)
        variables.pop("DUOLOGUE_CACHE", None)
        variables["XDG_CACHE_HOME"] = str(cache)
    return variables


def command(*arguments: str) -> list[str]:
    return [*_MAIN, *arguments]


def run(
    *arguments: str, stdin: str = "", cache: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`variables` are set for the command beside those of `environment`."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        env={**environment(cache), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
