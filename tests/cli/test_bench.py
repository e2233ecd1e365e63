"""`duologue bench`, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.processes import run

_ONE = ("--workload", "prefill_512", "--workload", "decode_short", "--repetitions", "2", "--threads", "1")


def test_engine_as_json(tiny_model_dir: Path) -> None:
    result = run("bench", "engine", str(tiny_model_dir), *_ONE, "--json")
    assert result.returncode == 0, result.stderr
    prefill, decode = json.loads(result.stdout)
    assert (prefill["workload"], decode["workload"]) == ("prefill_512", "decode_short")
    for reading in (prefill, decode):
        assert len(reading["samples_tokens_per_s"]) == 2
        assert min(reading["samples_tokens_per_s"]) <= reading["tokens_per_s"]
        assert reading["operations_per_s"] > 0
    assert decode["bytes_per_s"] > 0


def test_engine_as_a_table(tiny_model_dir: Path) -> None:
    result = run("bench", "engine", str(tiny_model_dir), *_ONE)
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert [row[0] for row in rows if row[0].startswith(("prefill", "decode"))] == [
        "prefill_512",
        "decode_short",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workload", "dance"], "prefill_4096"),
        (["--peer", "Q8_0"], "LABEL=GGUF"),
        (["--peer", "Q8_0=/no/such/file"], "/no/such/file"),
        (["--repetitions", "0"], "--repetitions"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    result = run("bench", "engine", *arguments)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())
