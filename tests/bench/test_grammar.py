"""The benchmark of grammars, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.processes import run


def test_free_and_constrained_replies_are_timed_in_pairs(tiny_model_dir: Path) -> None:
    arguments = ("bench", "grammar", str(tiny_model_dir), "--tokens", "8", "--repetitions", "2")
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert len(figures["free_s"]) == len(figures["schema_s"]) == 2
    assert min(*figures["free_s"], *figures["schema_s"], figures["ratio"]) > 0
    assert "median of 2 pairs" in run(*arguments).stdout
