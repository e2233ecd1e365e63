"""Facts about this machine that decide how fast a model runs: processor, cores, memory. Linux tells; elsewhere fields are None."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from duologue.engine.threads import default_threads

# Processor features that kernels are chosen by, as /proc/cpuinfo spells them.
_FEATURES = ("avx2", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni")


@dataclass(frozen=True)
class Machine:
    """`usable_cores` are those of the process's affinity, `engine_threads` what the engine takes unless told.

    `available_bytes` is what can be had without swapping, within `limit_bytes`, the cgroup's, if there is one.
    """

    processor: str
    features: tuple[str, ...]
    cores: int
    usable_cores: int
    engine_threads: int
    memory_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None


def read_machine(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Machine:
    """Reads it anew; available memory changes all the time."""
    processor = _fields(proc / "cpuinfo")
    flags = set(processor.get("flags", "").split())
    memory = _fields(proc / "meminfo")
    limit = min(_memory_limits(proc, cgroups), default=None)
    total, available = _kib(memory.get("MemTotal")), _kib(memory.get("MemAvailable"))
    if limit is not None and available is not None:
        available = min(available, max(0, limit[0] - limit[1]))
    return Machine(
        processor=processor.get("model name") or platform.processor() or platform.machine(),
        features=tuple(name for name in _FEATURES if name in flags),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        engine_threads=default_threads(),
        memory_bytes=total,
        available_bytes=available,
        limit_bytes=None if limit is None else limit[0],
    )


def _fields(path: Path) -> dict[str, str]:
    """`name: value` lines; of a name that comes again, the first."""
    fields: dict[str, str] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _kib(text: str | None) -> int | None:
    number = (text or "").split(" ")[0]
    return int(number) * 1024 if number.isdigit() else None


def _memory_limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of the cgroups that this process lies in, of version 2 and of version 1."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, own = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base, files = cgroups, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, files = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        folder = base
        for name in ("", *own.split("/")):
            if name == "..":  # outside of what a container sees
                continue
            folder = folder / name
            limit, used = (_number(folder / file) for file in files)
            if limit is not None and limit < 1 << 60:  # version 1 writes "no limit" as a huge number
                yield limit, used or 0


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
