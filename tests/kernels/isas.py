"""The instruction sets that this build and CPU can run."""

from __future__ import annotations

from duologue.kernels import isa_name


def _runnable() -> list[str]:
    found = []
    for name in ("scalar", "avx2", "avx512vnni"):
        try:
            isa_name(name)
        except RuntimeError:
            continue
        found.append(name)
    return found


ISAS = _runnable()
