"""RoPE tables: made once in float64, rounded to float32 and stored with the packed weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.models.spec import ModelSpec

Floats = npt.NDArray[np.float32]


def rope_tables(base: float, head_dim: int, positions: int) -> tuple[Floats, Floats]:
    """cos and sin, each [positions, head_dim / 2]: position p turns pair i by p * base^(-2i / head_dim)."""
    frequency = np.float64(base) ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)  # [D/2]
    angle = np.arange(positions, dtype=np.float64)[:, None] * frequency  # [positions, D/2]
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rope_kinds(spec: ModelSpec) -> list[tuple[float, int]]:
    """The distinct (base, head_dim) of a model, in order of first use; layers share the tables of one
    kind."""
    return list(dict.fromkeys((layer.rope_base, layer.head_dim) for layer in spec.layers))
