"""`duologue cache explain` as a process."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.processes import run

_A = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a tide?"}]


def test_two_dialogues_are_compared(tiny_model_dir: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(_A))
    b.write_text(json.dumps({"messages": [{**_A[0], "content": "Be brave."}, _A[1]]}))
    result = run("cache", "explain", str(a), str(b), "--model", str(tiny_model_dir))
    assert result.returncode == 0, result.stderr
    assert "the messages differ there" in result.stdout
    assert "A: messages[0].content, character" in result.stdout
    assert "B: messages[0].content, character" in result.stdout
    result = run("cache", "explain", str(a), str(b), "--model", str(tiny_model_dir), "--json")
    report = json.loads(result.stdout)
    assert (report["cause"], report["before"]["message"]) == ("content", 0)
    assert report["recomputed_tokens"] == report["tokens_b"] - report["shared_tokens"]


def test_a_missing_file_is_one_line(tiny_model_dir: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.json")
    result = run("cache", "explain", missing, missing, "--model", str(tiny_model_dir))
    assert result.returncode == 1
    assert "none.json" in result.stderr
    assert result.stderr.count("\n") == 1
