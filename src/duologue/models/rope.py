"""RoPE tables: made once in float64, rounded to float32 and stored with the packed weights.

The tables are the same bits on every machine, so that packed models and calibration are too. numpy's powers, cosines and sines
may differ in the last bit from one CPU or C library to the next; here are only decimal arithmetic and float64 sums, products
and roundings, which IEEE 754 fixes.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from duologue.models.spec import LayerSpec, ModelSpec

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_ROWS = 2048  # at a time, so that float64 temporaries stay small beside the tables
# Taylor coefficients: on [-pi/4, pi/4] the next term is below 1e-19.
_SIN = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(9)]
_COS = [(-1.0) ** n / math.factorial(2 * n) for n in range(10)]


class RopeKind(NamedTuple):
    """What a layer's tables are made from."""

    base: float
    factor: float
    head_dim: int
    divisors: tuple[float, ...] = ()

    def tables(self, positions: int) -> tuple[Floats, Floats]:
        """The tables of so many positions: see `rope_tables`."""
        return rope_tables(self.base, self.head_dim, positions, self.factor, self.divisors)


def rope_tables(
    base: float, head_dim: int, positions: int, factor: float = 1.0, divisors: tuple[float, ...] = ()
) -> tuple[Floats, Floats]:
    """cos and sin, each [positions, head_dim / 2]: position p turns pair i by p / factor * base^(-2i / head_dim), divided by its
    divisor where there are any."""
    frequency = frequencies(base, head_dim)  # [D/2]
    if divisors:
        frequency = frequency / np.array(divisors, dtype=np.float64)
    cos = np.empty((positions, len(frequency)), dtype=np.float32)
    sin = np.empty_like(cos)
    for begin in range(0, positions, _ROWS):
        rows = slice(begin, min(begin + _ROWS, positions))
        position = np.arange(rows.start, rows.stop, dtype=np.float64) / factor
        cos[rows], sin[rows] = cos_sin(position[:, None] * frequency)
    return cos, sin


def rope_kind(layer: LayerSpec) -> RopeKind:
    """The kind of a layer."""
    return RopeKind(layer.rope_base, layer.rope_factor, layer.head_dim, layer.rope_divisors)


def rope_kinds(spec: ModelSpec) -> list[RopeKind]:
    """The distinct kinds of a model, in order of first use; layers share the tables of one kind."""
    return list(dict.fromkeys(map(rope_kind, spec.layers)))


def frequencies(base: float, head_dim: int) -> Doubles:
    """base^(-2i / head_dim), correctly rounded, [head_dim / 2]."""
    with localcontext() as context:
        context.prec = 40
        log = Decimal(base).ln()
        return np.array([float((log * -i / head_dim).exp()) for i in range(0, head_dim, 2)])


def llama3_divisors(
    base: float, head_dim: int, factor: float, low: float, high: float, trained_tokens: float
) -> tuple[float, ...]:
    """What Llama 3 divides the frequency of each pair by to go beyond the context that it was first trained with.

    Pairs that turn more than `high` times in `trained_tokens` stay as they are, those that turn less than `low` times are
    slowed down `factor` times, and in between the frequency is a mean of both, weighted by the number of turns.
    """
    turns = trained_tokens * frequencies(base, head_dim) / (2 * math.pi)
    if high == low:
        weight = np.where(turns < low, 0.0, 1.0)
    else:
        weight = np.clip((turns - low) / (high - low), 0.0, 1.0)
    divisors: list[float] = (1.0 / ((1.0 - weight) / factor + weight)).tolist()
    return tuple(divisors)


def _pi_parts() -> tuple[float, float, float]:
    """pi / 2 in three parts; the first two have 32 bits, so their products with integers up to 2^21 are exact."""
    half_pi = Decimal("1.57079632679489661923132169163975144209858469968755")
    parts = []
    with localcontext() as context:
        context.prec = 60
        for _ in range(2):
            fraction, exponent = math.frexp(float(half_pi))
            part = math.ldexp(math.floor(math.ldexp(fraction, 32)), exponent - 32)
            parts.append(part)
            half_pi -= Decimal(part)
        return parts[0], parts[1], float(half_pi)


_PI_PARTS = _pi_parts()


def cos_sin(angle: Doubles) -> tuple[Doubles, Doubles]:
    """Cosine and sine, each within 1e-15 of the exact value for angles from 0 to 2^20."""
    quarter = np.rint(angle * (2.0 / math.pi))
    rest = angle
    for part in _PI_PARTS:
        rest = rest - quarter * part
    square = rest * rest
    cos, sin = _polynomial(_COS, square), rest * _polynomial(_SIN, square)
    turn = quarter.astype(np.int64) & 3
    odd = (turn & 1).astype(bool)
    return (
        np.where(odd, sin, cos) * np.where((turn == 1) | (turn == 2), -1.0, 1.0),
        np.where(odd, cos, sin) * np.where(turn >= 2, -1.0, 1.0),
    )


def _polynomial(coefficients: list[float], x: Doubles) -> Doubles:
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value
