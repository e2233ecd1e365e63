"""`duologue eval`, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.processes import run


@pytest.fixture(scope="module")
def text_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. Grüße! " * 8, encoding="utf-8")
    return path


def test_as_json_with_reference_and_prompts(tiny_model_dir: Path, text_path: Path) -> None:
    options = ("--text", str(text_path), "--tokens", "150", "--reference", "--prompts", "--threads", "1")
    result = run("eval", "perplexity", str(tiny_model_dir), *options, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["tokens"], report["predicted_tokens"]) == (150, 149)
    assert report["reference"]["ratio"] == pytest.approx(
        report["perplexity"] / report["reference"]["perplexity"]
    )
    assert 0 < report["reference"]["divergence_nats"] < 0.1
    assert len(report["windows"]) == 1
    assert len(report["replies"]) == 50
    assert all(reply["is_equal"] == (reply["gap"] is None) for reply in report["replies"])


def test_as_a_table(tiny_model_dir: Path, text_path: Path) -> None:
    options = ("--text", str(text_path), "--reference", "--prompts", "--threads", "1")
    result = run("eval", "perplexity", str(tiny_model_dir), *options)
    assert result.returncode == 0, result.stderr
    for label in ("perplexity, int8", "perplexity, float32", "ratio", "top-1 agreement", "replies equal"):
        assert label in result.stdout
    assert sum("/20" in line for line in result.stdout.splitlines()) > 25


def test_the_text_that_ships_is_the_default(tiny_model_dir: Path) -> None:
    result = run("eval", "perplexity", str(tiny_model_dir), "--tokens", "100", "--threads", "1")
    assert result.returncode == 0, result.stderr
    assert "100 in 1 windows" in result.stdout
    assert "float32" not in result.stdout


@pytest.mark.parametrize(
    ("content", "options", "code", "says"),
    [
        (None, [], 2, "does not exist"),
        (b"caf\xe9 au lait", [], 2, "is not UTF-8: byte 3 is 0xe9"),
        (b"", [], 1, "too short"),
        (b"abc", ["--tokens", "500"], 1, "lower --tokens"),
        (b"abc", ["--tokens", "1"], 2, "--tokens"),
    ],
)
def test_bad_input(
    tiny_model_dir: Path, tmp_path: Path, content: bytes | None, options: list[str], code: int, says: str
) -> None:
    path = tmp_path / "t"
    if content is not None:
        path.write_bytes(content)
    result = run("eval", "perplexity", str(tiny_model_dir), "--text", str(path), *options)
    assert result.returncode == code, result.stderr
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
