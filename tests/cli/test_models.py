"""`duologue models info`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.processes import run


def test_as_json() -> None:
    result = run("models", "info", "duologue-13b", "--context", "8192", "--dialogues", "2000", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["kinds"]["local"] == {
        "layers": 16,
        "bytes_per_token": 16 * 264,
        "page_bytes": 64 * 16 * 264,
    }
    assert report["kinds"]["shared"]["layers"] == 48 - 19
    (dialogue,) = report["dialogues"]
    assert dialogue["bare"]["bytes_of_all"] == 2000 * dialogue["bare"]["bytes"]
    assert [step["step"] for step in dialogue["waterfall"]] == [
        "multi_head",
        "grouped",
        "kv_heads",
        "windows",
        "sharing",
        "int8",
        "retained",
        "checkpoints",
    ]
    assert dialogue["waterfall"][-1]["bytes"] == dialogue["with_checkpoints"]["bytes"]


def test_as_tables_for_each_context() -> None:
    result = run("models", "info", "duologue-13b", "--dialogues", "10")
    assert result.returncode == 0, result.stderr
    for text in ("1,024 tokens", "8,192 tokens", "32,768 tokens", "window 1,024", "102.72x", "10 dialogues"):
        assert text in result.stdout


def test_a_model_without_windows_has_no_checkpoints(tiny_model_dir: Path) -> None:
    result = run("models", "info", str(tiny_model_dir), "--context", "1024", "--context", "4096")
    assert result.returncode == 0, result.stderr
    assert "pages: 16 global\n" in result.stdout
    assert "4,096 tokens, more than its context" in result.stdout
    assert "with sparse checkpoints" not in result.stdout


def test_a_plot(tmp_path: Path) -> None:
    path = tmp_path / "kv.png"
    result = run(
        "models", "info", "duologue-1m", "--context", "1024", "--context", "4096", "--plot", str(path)
    )
    assert result.returncode == 0, result.stderr
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["duologue-2m"], "'2m'"),
        (["no-such-model"], "unknown model 'no-such-model'"),
        (["duologue-1m", "--plot", "nowhere/kv.png"], "the folder of nowhere/kv.png does not exist"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], says: str) -> None:
    result = run("models", "info", *arguments)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
