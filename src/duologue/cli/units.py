"""Byte sizes, finite numbers and origins of web pages on the command line."""

from __future__ import annotations

import math
import re
from typing import Any

import click

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[_letter + "ib"] = 1024**_power
    _UNITS[_letter + "b"] = 1000**_power


def parse_bytes(text: str) -> int:
    """`1GiB`, `512 MiB`, `1.5g` (binary, as GiB), `2GB` (decimal) or plain bytes. Raises `ValueError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"'{text}' is not a size; write for example 1GiB or 512MiB")
    return int(float(match[1]) * unit)


def byte_size(text: str) -> int:
    """`parse_bytes` as a click type: `type=byte_size, metavar="SIZE"`."""
    try:
        return parse_bytes(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from None


def positive_byte_size(text: str) -> int:
    """As `byte_size`, but not 0."""
    size_bytes = byte_size(text)
    if size_bytes < 1:
        raise click.BadParameter(f"'{text}' must be more than nothing")
    return size_bytes


def origin(text: str) -> str:
    """What a browser calls the site of a page, or `*`: one spelled otherwise would be no page's, and nobody would be told."""
    if text in ("*", "null") or re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+", text):
        return text
    raise click.BadParameter(
        f"'{text}' is no origin; write it as browsers do: a scheme and a host in small letters, a port if it is not the usual one, "
        "and no path, for example http://localhost:3000"
    )


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` without NaN, which no comparison with a bound refuses, and without infinities."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"'{value}' is not a finite number.", param, ctx)
        return number
