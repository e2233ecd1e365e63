"""The benchmark of drafts, on a tiny model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from duologue.bench.speculation import bench_speculation
from duologue.bench.speculation_workload import CASES
from tests.cli.processes import run


def test_readings_add_up_the_requests_of_a_kind(tiny_model_dir: Path) -> None:
    cases = [dataclasses.replace(case, reply_tokens=12) for case in CASES if case.kind in ("copy", "quote")]
    readings = bench_speculation(tiny_model_dir, threads=1, rounds=2, streams=2, cases=cases)
    assert [reading.kind for reading in readings] == ["copy", "quote"]
    for reading in readings:
        assert len(reading.speedups) == len(reading.tokens) == 2
        assert 0 < reading.tokens[0] <= 2 * 2 * 11
        assert min(reading.plain_tokens_per_s, reading.drafting_tokens_per_s, reading.speedup) > 0
        assert 0 <= reading.accepted <= reading.drafted


def test_the_command_refuses_unknown_kinds_and_prints_json(tiny_model_dir: Path) -> None:
    assert "chat, greedy" in run("bench", "speculation", "--kind", "poem").stderr
    done = run("bench", "speculation", str(tiny_model_dir), "--kind", "quote", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    (reading,) = json.loads(done.stdout)
    assert reading["kind"] == "quote"
    assert reading["accepted_tokens"] <= reading["drafted_tokens"]
