"""The kernel bench measures what it says: its figures follow from its seconds, and it runs on every set."""

from __future__ import annotations

import json

import pytest

from duologue.bench.kernels import Effort, GemmReading, GemmShape, KernelReport, Peaks, bench_kernels
from duologue.kernels import _native
from tests.kernels.isas import ISAS

SHAPE = GemmShape("tiny", 96, 64, gated=True)
PEAKS = Peaks("avx2", 2, 2e11, 1e11, 5e10, 2e10, 1e10)


def test_figures_follow_from_the_median_second() -> None:
    reading = GemmReading(GemmShape("map", 1000, 500), 4, (3e-5, 1e-5, 2e-5))
    report = KernelReport(PEAKS, (reading,))
    assert reading.ops_per_s == pytest.approx(2 * 4 * 1000 * 500 / 2e-5)
    assert reading.weight_bytes_per_s == pytest.approx(1000 * 500 / 2e-5)
    assert report.share_of_int8_peak(reading) == pytest.approx(1.0)
    assert report.share_of_bandwidth(reading) == pytest.approx(1.25)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_is_measured(isa: str) -> None:
    seen: list[str] = []
    effort = Effort(passes=1, weight_bytes=1 << 16, peak_repeats=1, peak_rounds=1000, memory_bytes=4 << 20)
    report = bench_kernels(2, isa=isa, rows=(1, 5), shapes=(SHAPE,), effort=effort, on_progress=seen.append)
    assert report.peaks.isa == isa
    assert [reading.m for reading in report.readings] == [1, 5]
    assert all(reading.seconds > 0 for reading in report.readings)
    assert report.peaks.read_bytes_per_s > 1e8
    assert "tiny, 5 rows" in seen
    assert json.loads(json.dumps(report.as_dict()))["gemm"][1]["m"] == 5
    assert len(report.lines()) == 8


def test_register_loops_count_their_operations() -> None:
    """A sequence that the set lacks did nothing, and says so."""
    assert _native.int8_peak(99, 1, 1000, 1) == [0.0]
    assert _native.int8_peak(0, 1, 1000, 1, "scalar") == [0.0]
