"""Predicted speeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duologue.bench.forecast import forecast, local_spec
from duologue.bench.kernels import Peaks
from duologue.errors import ModelLoadError

_PEAKS = Peaks("avx2", 2, 400e9, 200e9, 60e9, 38.9e9, 24e9)


def test_the_machine_of_the_benchmarks_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    # duologue-135m has SmolLM2-135M's width, depth and size: 140 tokens/s decoding and 988 of prefill were measured there.
    expected = forecast(local_spec("duologue-135m"), _PEAKS)
    low, high = expected.decode_per_s
    assert low < 145 < high
    assert expected.prefill_per_s is not None
    assert expected.prefill_per_s[0] < 988 < 1.1 * expected.prefill_per_s[1]
    assert 130e6 < expected.weight_bytes < 175e6


def test_speeds_follow_the_peaks(tiny_model_dir: Path) -> None:
    spec = local_spec(str(tiny_model_dir))
    one, two = (
        forecast(spec, replace(_PEAKS, read_bytes_per_s=reads, int8_ops_per_s=0.0)) for reads in (30e9, 60e9)
    )
    assert two.decode_per_s[0] == pytest.approx(2 * one.decode_per_s[0])
    assert one.prefill_per_s is None


def test_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_CACHE", str(tmp_path))
    for name, says in (
        ("smollm2-135m", "was not fetched yet"),
        ("someone/a-model", "fetch the model first"),
        ("smolm2", "did you mean smollm2-135m"),
    ):
        with pytest.raises(ModelLoadError, match=says):
            local_spec(name)
    assert list(tmp_path.iterdir()) == []
