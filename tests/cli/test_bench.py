"""`duologue bench`, on a tiny model and with little effort."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.processes import run

_ONE = ("--workload", "prefill_512", "--workload", "decode_short", "--repetitions", "2", "--threads", "1")


def test_engine_as_json(tiny_model_dir: Path) -> None:
    result = run("bench", "engine", str(tiny_model_dir), *_ONE, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    prefill, decode = report["workloads"]
    assert (prefill["name"], decode["name"]) == ("prefill_512", "decode_short")
    for reading in (prefill, decode):
        assert len(reading["samples_tokens_per_s"]) == 2
        assert min(reading["samples_tokens_per_s"]) <= reading["tokens_per_s"]
        assert reading["ops_per_s"] > 0
    assert decode["bytes_per_s"] > 0
    assert report["threads"] == 1
    share = decode["bytes_per_s"] / report["read_peak_bytes_per_s"]
    assert decode["share_of_bandwidth"] == pytest.approx(share)


def test_engine_as_a_table(tiny_model_dir: Path) -> None:
    result = run("bench", "engine", str(tiny_model_dir), *_ONE, "--no-peaks")
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines() if line.strip()]
    assert [row[0] for row in rows if row[0].startswith(("prefill", "decode"))] == [
        "prefill_512",
        "decode_short",
    ]


def test_kernels_as_json() -> None:
    result = run("bench", "kernels", "--quick", "--json", "--threads", "1")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["peaks"]["read_bytes_per_s"] > 0
    assert {reading["shape"]["name"] for reading in report["gemm"]} >= {"qkv", "down", "head"}
    for reading in report["attention"]:
        assert reading["kv_bytes_per_s"] > 0
        assert reading["ops_per_s"] > 0


def test_kernels_as_a_table() -> None:
    result = run("bench", "kernels", "--quick", "--threads", "1")
    assert result.returncode == 0, result.stderr
    assert "1 threads" in result.stdout
    assert "gate_up" in result.stdout
    assert "decode 32 x 512" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["engine", "--workload", "dance"], "prefill_4096"),
        (["engine", "--peer", "Q8_0"], "LABEL=GGUF"),
        (["engine", "--peer", "Q8_0=/no/such/file"], "/no/such/file"),
        (["engine", "--repetitions", "0"], "--repetitions"),
        (["cache", "--overcommit", "1e-300"], "--overcommit"),
        (["lookup", "--pages", "1000", "--dialogues", "50000"], "1000 pages are too few for 50000 dialogues"),
        (["kernels", "--quick", "--isa", "sse2"], "sse2"),
    ],
)
def test_wrong_usage(arguments: list[str], says: str) -> None:
    result = run("bench", *arguments)
    assert result.returncode == 2, result.stderr
    assert says in " ".join(result.stderr.split())


def test_what_cannot_be_used_is_one_line(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A key that is not UTF-8 comes as a lone surrogate; one with a line end would be a header of its own.
    results = [run("bench", "dialogues", "--api-key", key) for key in ("\udcff", "a\nb: c")]
    monkeypatch.setenv("DUOLOGUE_ISA", "sse2")
    results.append(run("bench", "engine", str(tiny_model_dir)))
    for result, says in zip(results, ("API key", "API key", "DUOLOGUE_ISA=sse2"), strict=True):
        assert result.returncode == 1
        assert says in result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
