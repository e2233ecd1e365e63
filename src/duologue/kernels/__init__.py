"""The compiled kernels: one thin typed function per operation, a numpy reference of the same name in `reference`.

`csrc/` holds all C++. Nothing outside this package touches the compiled module or build flags.
"""

from __future__ import annotations

from duologue.kernels import _native as _native

PAGE_TOKENS: int = _native.PAGE_TOKENS
"""Positions in a KV page, and the length of an attention key tile."""

SPLIT_TOKENS: int = _native.SPLIT_TOKENS
"""Keys whose partial softmax is computed on its own before partials are merged."""


def isa_name(isa: str = "") -> str:
    """Name of the instruction set in use (`scalar`, `avx2`, `avx512vnni`).

    Raises RuntimeError when `isa` (or the variable DUOLOGUE_ISA) names one that is unknown or that this CPU lacks.
    """
    return _native.isa_name(isa)
