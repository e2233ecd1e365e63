"""What of a JSON schema would cost a compiler without bound, refused before it is compiled.

A number that must be a multiple of m is followed by an automaton of m states, one that must be a multiple of two numbers by one of
their product. llguidance builds it without looking at its limits: four primes of four digits take hundreds of megabytes and do
not end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

MOST_STATES = 10_000
_EMBEDDED = "%json"


def refuse_costly_schema(schema: Any) -> None:
    """Raises ValueError when the schema's different `multipleOf`, all of them together, need more than MOST_STATES states.

    Together, because any of them may come to hold for one number, by `allOf` or a reference.
    """
    states = 1
    for digits in {_digits(value) for value in _multiples(schema)}:
        states *= digits
        if states > MOST_STATES:
            raise ValueError(f"its multipleOf are too large together (their product may be {MOST_STATES})")


def refuse_costly_lark(text: str) -> None:
    """As `refuse_costly_schema`, of the schemas that a Lark grammar embeds."""
    decoder, schemas = json.JSONDecoder(), []
    for part in text.split(_EMBEDDED)[1:]:
        try:
            schemas.append(decoder.raw_decode(part.lstrip())[0])
        except ValueError:
            continue  # no JSON, which the compiler says better
    refuse_costly_schema(schemas)


def _digits(value: int | float) -> int:
    """Of 0.25 it is 25: digits are what the automaton reads."""
    number = Decimal(str(value)).normalize()
    return max(1, int(number.scaleb(-min(0, int(number.as_tuple().exponent)))))


def _multiples(schema: Any) -> Iterator[int | float]:
    """Every finite `multipleOf` above 0, at any depth; other values are refused when the schema is compiled."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            pending += value.values()
            multiple = value.get("multipleOf")
            if isinstance(multiple, int | float) and not isinstance(multiple, bool) and 0 < multiple < 1e300:
                yield multiple
