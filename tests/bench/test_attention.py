"""The attention benchmark counts what it runs."""

from __future__ import annotations

import pytest

from duologue.bench.attention import AttentionWorkload, bench_attention


def test_operations_and_bytes_of_a_workload() -> None:
    prefill = AttentionWorkload("", context=3, tokens=2, kv_heads=5, group=2, head_dim=16)
    # The last two of three tokens see 2 and 3 keys; each key costs 16 multiply-adds twice.
    assert prefill.operations == (2 + 3) * 2 * 5 * (2 * 2 * 16)
    assert prefill.kv_bytes == 3 * 5 * (16 + 16 + 4 + 4)
    assert AttentionWorkload("", 3, 2, 5, 2, 16, streams=7).kv_bytes == 7 * prefill.kv_bytes


@pytest.mark.parametrize("threads", [1, 2])
def test_readings_are_typed_rows_with_positive_rates(threads: int) -> None:
    workloads = [
        AttentionWorkload("prefill", 100, 100, kv_heads=2),
        AttentionWorkload("decode", 130, 1, kv_heads=4, streams=3),
    ]
    readings = bench_attention(workloads, threads=threads, repetitions=3)
    assert [reading.workload for reading in readings] == workloads
    for reading in readings:
        assert len(reading.samples_s) == 3
        assert min(reading.samples_s) <= reading.seconds <= max(reading.samples_s)
        assert reading.gop_per_s == pytest.approx(reading.workload.operations / reading.seconds / 1e9)
        assert reading.gb_per_s == pytest.approx(reading.workload.kv_bytes / reading.seconds / 1e9)
