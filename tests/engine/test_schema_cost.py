"""Schemas that would take a compiler for ever are refused before it sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duologue.dialogue.grammar import Grammar
from duologue.engine.engine import Engine
from duologue.engine.schema_cost import refuse_costly_lark, refuse_costly_schema
from duologue.errors import InvalidRequestError


def multiples(*values: float) -> dict[str, Any]:
    return {"allOf": [{"type": "integer", "multipleOf": value} for value in values]}


@pytest.mark.parametrize(
    "schema",
    [
        multiples(2, 5, 10),
        multiples(0.01),
        multiples(9973),
        {"multipleOf": "x"},
        {"multipleOf": [3]},
        {},
        True,
    ],
)
def test_usual_multiples_are_let_through(schema: Any) -> None:
    refuse_costly_schema(schema)
    refuse_costly_lark(f"start: item\nitem: %json {json.dumps(schema)}")


@pytest.mark.parametrize(
    "schema",
    [
        multiples(9973, 9967, 9949, 9941),
        multiples(99991),
        multiples(0.00009973, 7.919),
        {"$ref": "#/$defs/a", "multipleOf": 9973, "$defs": {"a": {"multipleOf": 9967}}},
        {"properties": {"a": {"items": [{"multipleOf": 1e12}]}}},
    ],
)
def test_large_multiples_are_refused_wherever_they_stand(schema: Any) -> None:
    with pytest.raises(ValueError, match="multipleOf"):
        refuse_costly_schema(schema)
    with pytest.raises(ValueError, match="multipleOf"):
        refuse_costly_lark(f"start: item\nitem: %json {json.dumps(schema)} | /a/")
    hidden = json.dumps(schema).replace("multipleOf", "multiple\\u004ff")
    with pytest.raises(ValueError, match="multipleOf"):
        refuse_costly_lark(f"start: %json\n{hidden}")


def test_the_engine_refuses_them_by_name(tiny_engine: Engine) -> None:
    schema = json.dumps(multiples(9973, 9967, 9949, 9941))
    for grammar in (Grammar("json_schema", schema), Grammar("lark", f"start: %json {schema}")):
        with pytest.raises(InvalidRequestError, match="multipleOf are too large together"):
            tiny_engine.compile_grammar(grammar)
