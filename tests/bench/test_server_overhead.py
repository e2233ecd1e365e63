"""The server's overhead is told apart from the model's work."""

from __future__ import annotations

from duologue.bench.server_overhead import bench_server


def test_overhead_is_what_is_left_beside_the_forward_step() -> None:
    found = bench_server(streams=2, tokens=30, repetitions=1)
    # The clocks of threads tick coarsely on some machines, so that of so few tokens one part may come out as nothing.
    assert found.engine_us >= 0
    assert found.total_us > 0
    assert found.as_dict()["total_us"] == round(found.total_us, 1)
