"""A function's parameters as a part of a larger schema: the same texts conform."""

from __future__ import annotations

from typing import Any

import pytest

from duologue.dialogue.argument_schema import argument_schema
from duologue.errors import InvalidRequestError

_AT = "#/properties/arguments"


def test_references_move_along_and_remarks_are_left_out() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/tree",
        "title": "Tree",
        "description": "A tree",
        "properties": {
            "title": {"type": "string", "description": "Its title", "default": "x"},
            "children": {"type": "array", "items": {"$ref": "#"}, "examples": [[]]},
            "$ref": {"anyOf": [{"$ref": "#/$defs/title"}, {"const": {"$ref": "#", "title": "kept"}}]},
        },
        "required": ["title"],
        "$defs": {"title": {"enum": [{"description": "kept"}]}},
    }
    assert argument_schema(schema, _AT) == {
        "properties": {
            "title": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": _AT}},
            "$ref": {"anyOf": [{"$ref": _AT + "/$defs/title"}, {"const": {"$ref": "#", "title": "kept"}}]},
        },
        "required": ["title"],
        "$defs": {"title": {"enum": [{"description": "kept"}]}},
    }


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"$ref": "https://example.org/other"}, "'https://example.org/other'"),
        ({"items": {"$ref": "#anchor"}}, "'#anchor'"),
        ({"items": {"$anchor": "anchor"}}, "'[$]anchor'"),
        ({"properties": {"a": {"$id": "other"}}}, "'[$]id'"),
        ({"$dynamicRef": "#a"}, "'[$]dynamicRef'"),
        ({"$ref": 5}, "refers to 5"),
        (nested(400), "nested deeper"),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named) as caught:
        argument_schema(schema, _AT)
    assert caught.value.param == "tools"
