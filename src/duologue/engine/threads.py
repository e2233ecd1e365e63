"""How many threads the engine takes when nobody says: the cores that this process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path


def default_threads(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores of this process's affinity, or of its cgroup's CPU quota (version 2) where that is less; at least 1.

    A quota is rounded down: the threads of a step wait for each other, so one that is throttled stops them all.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *_quotas(cgroup_root)]))


def _quotas(cgroup_root: Path) -> list[int]:
    """Whole cores of each quota that limits this process: its own cgroup's and those of the cgroups above."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    # Version 2 has the one line `0::/path`; in a container the path may lie outside of what is mounted.
    own = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    folders = [cgroup_root]
    for name in own.split("/"):
        if name and name != "..":
            folders.append(folders[-1] / name)
    return [cores for folder in folders if (cores := _quota(folder / "cpu.max")) is not None]


def _quota(path: Path) -> int | None:
    try:
        quota_us, period_us = path.read_text().split()
        return None if quota_us == "max" else int(quota_us) // int(period_us)
    except (OSError, ValueError, ZeroDivisionError):
        return None
