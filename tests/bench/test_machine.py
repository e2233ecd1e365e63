"""What is read of a machine."""

from __future__ import annotations

from pathlib import Path

from duologue.bench.machine import read_machine

GIB = 1 << 30


def _machine(folder: Path, cgroup: str, limits: dict[str, str]) -> tuple[Path, Path]:
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "cpuinfo").write_text(
        "model name\t: A chip\nflags\t\t: fpu avx2 avx512f\n\nmodel name\t: Another\n"
    )
    (proc / "meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n")
    (proc / "self" / "cgroup").write_text(cgroup)
    for name, text in limits.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return proc, cgroups


def test_the_tightest_limit_of_version_2_counts(tmp_path: Path) -> None:
    files = {
        "memory.max": "max",
        "a/memory.max": str(4 * GIB),
        "a/memory.current": str(GIB),
        "a/b/memory.max": str(6 * GIB),
    }
    machine = read_machine(*_machine(tmp_path, "0::/a/b\n", files))
    assert (machine.processor, machine.features) == ("A chip", ("avx2", "avx512f"))
    assert (machine.memory_bytes, machine.limit_bytes, machine.available_bytes) == (
        16 * GIB,
        4 * GIB,
        3 * GIB,
    )


def test_limits_of_version_1(tmp_path: Path) -> None:
    none = str((1 << 63) - 4096)
    files = {"memory/memory.limit_in_bytes": none, "memory/x/memory.limit_in_bytes": str(GIB)}
    machine = read_machine(*_machine(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n", files))
    assert (machine.limit_bytes, machine.available_bytes) == (GIB, GIB)


def test_without_limits_and_without_any_of_it(tmp_path: Path) -> None:
    machine = read_machine(*_machine(tmp_path, "0::/../outside\n", {}))
    assert (machine.limit_bytes, machine.available_bytes) == (None, 8 * GIB)
    machine = read_machine(tmp_path / "none", tmp_path / "none")
    assert (machine.memory_bytes, machine.available_bytes, machine.features) == (None, None, ())
    assert machine.engine_threads >= 1
