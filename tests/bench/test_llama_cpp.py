from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duologue.bench.llama_cpp import (
    BUILD_SCRIPT,
    DECODE_SHORT,
    PREFILL_512,
    STREAMS_32_512,
    LlamaCpp,
    PeerError,
    Reading,
    Settings,
    Workload,
    default_peers_dir,
)
from duologue.models.fetch import fetch
from duologue.models.registry import MODELS

ROOT = Path(__file__).parents[2]


def test_missing_tools_name_the_script_that_builds_them(tmp_path: Path) -> None:
    assert (ROOT / BUILD_SCRIPT).is_file()
    with pytest.raises(PeerError, match=r"llama-bench.*" + BUILD_SCRIPT):
        LlamaCpp(tmp_path)


def test_peers_dir_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_PEERS_DIR", "/somewhere")
    assert default_peers_dir() == Path("/somewhere")
    monkeypatch.setenv("DUOLOGUE_PEERS_DIR", "")
    assert default_peers_dir() == Path(".peers")


@pytest.mark.parametrize(
    "counts",
    [
        {},
        {"prefill_tokens": 8, "decode_tokens": 8},
        {"decode_tokens": -1},
        {"decode_tokens": 8, "streams": 0},
        {"decode_tokens": 8, "streams": 2},
        {"prefill_tokens": 8, "depth_tokens": 8, "streams": 2},
    ],
)
def test_a_workload_that_no_tool_measures_is_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="workload bad"):
        Workload("bad", **counts)


def test_the_median_stands_for_a_reading() -> None:
    reading = Reading(PREFILL_512, Path("m.gguf"), Settings(), (300.0, 100.0, 110.0))
    assert (reading.tokens_per_s, reading.repetitions) == (110.0, 3)


@pytest.fixture(scope="module")
def peer() -> LlamaCpp:
    return LlamaCpp(default_peers_dir())


@pytest.fixture(scope="module")
def q4_1() -> Path:
    return fetch(MODELS["smollm2-135m"])


@pytest.mark.peers
@pytest.mark.parametrize(
    "workload",
    [
        replace(PREFILL_512, prefill_tokens=32),
        replace(DECODE_SHORT, decode_tokens=4),
        replace(DECODE_SHORT, decode_tokens=4, depth_tokens=16),
        replace(STREAMS_32_512, decode_tokens=4, depth_tokens=16, streams=3),
    ],
)
def test_every_kind_of_workload_gives_one_speed_a_repetition(
    peer: LlamaCpp, q4_1: Path, workload: Workload
) -> None:
    reading = peer.measure(q4_1, workload, repetitions=2)
    assert reading.repetitions == 2
    assert reading.settings.flash_attention in ("on", "off")
    assert all(speed > 0 for speed in reading.samples)


@pytest.mark.peers
def test_requantised_weights_run_and_are_made_once(peer: LlamaCpp, q4_1: Path, tmp_path: Path) -> None:
    target = peer.requantize(q4_1, tmp_path / "made" / "q8_0.gguf", "Q8_0")
    assert target.stat().st_size > q4_1.stat().st_size
    before = target.stat().st_mtime_ns
    assert peer.requantize(q4_1, target, "Q8_0").stat().st_mtime_ns == before
    assert peer.measure(target, replace(DECODE_SHORT, decode_tokens=2), repetitions=1).tokens_per_s > 0
    assert [path.name for path in target.parent.iterdir()] == ["q8_0.gguf"]


@pytest.mark.peers
def test_a_file_that_is_no_model_is_named_and_leaves_nothing(peer: LlamaCpp, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(PeerError, match="llama-bench failed"):
        peer.measure(broken, PREFILL_512, repetitions=1)
    with pytest.raises(PeerError, match="llama-quantize failed"):
        peer.requantize(broken, tmp_path / "out.gguf", "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]
    with pytest.raises(PeerError, match=r"no GGUF file at .*absent\.gguf"):
        peer.measure(tmp_path / "absent.gguf", PREFILL_512)


@pytest.mark.peers
def test_a_run_past_its_time_limit_is_stopped(peer: LlamaCpp, q4_1: Path) -> None:
    with pytest.raises(PeerError, match="ran longer than"):
        peer.measure(q4_1, PREFILL_512, repetitions=1000, timeout_s=0.5)
