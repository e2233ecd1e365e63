"""What an engine refuses to start with, and how many threads it takes by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duologue.engine.engine import Engine
from duologue.engine.threads import default_threads
from duologue.errors import CapacityError, InvalidRequestError
from duologue.models.packed_model import PackedModel

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("threads", [0, -1, 1025, 10**6])
def test_threads_out_of_range_are_refused_by_name(tiny_model: PackedModel, threads: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"threads must be between 1 and 1024, not {threads}"):
        Engine(tiny_model, threads=threads)


def test_more_kv_than_addresses_or_memory_is_refused(tiny_model: PackedModel) -> None:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with pytest.raises(CapacityError, match=r"more than a process can address .*--kv-memory"):
        Engine(tiny_model, kv_memory_bytes=1 << 70)
    with pytest.raises(
        CapacityError, match=rf"this machine's {memory_bytes} bytes of memory; lower --kv-memory"
    ):
        Engine(tiny_model, kv_memory_bytes=memory_bytes + (1 << 30))


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("max 100000\n", CORES),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("100000000 100000\n", CORES),
        ("nonsense\n", CORES),
        (None, CORES),
    ],
)
def test_default_threads_respect_the_cpu_quota(tmp_path: Path, content: str | None, cores: int) -> None:
    if content is not None:
        (tmp_path / "cpu.max").write_text(content)
    assert default_threads(tmp_path) == cores
