"""Choosing a token from logits. See `reference.sampling` for what is computed."""

from __future__ import annotations

import numpy.typing as npt

from duologue.kernels import _native
from duologue.kernels.rows import as_floats


def sample(
    logits: npt.ArrayLike,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    choice: int = 0,
    position: int = 0,
    isa: str = "",
) -> int:
    """The token id chosen from logits [vocab], the same on every machine.

    `temperature` 0 is greedy (the first maximum); `top_k` 0 and `top_p` 1 are off. `seed`, `choice` and `position` are the
    only source of noise. Raises ValueError when a parameter is out of range or there are no logits.
    """
    row = as_floats(logits, 1, "logits")
    if not len(row):
        raise ValueError("logits are empty")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be at least 0 and finite, not {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, not {top_p}")
    if not 0 <= top_k < 2**31:
        raise ValueError(f"top_k must be 0 (off) or a positive 32-bit integer, not {top_k}")
    for name, value, bits in (("seed", seed, 64), ("choice", choice, 32), ("position", position, 64)):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} must be an unsigned {bits}-bit integer, not {value}")
    return _native.sample_row(row, temperature, top_p, top_k, seed, choice, position, isa)
