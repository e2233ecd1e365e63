"""A function's parameters as part of a grammar's schema: references moved along, and only what constrains text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duologue.errors import InvalidRequestError

_MAX_DEPTH = 100
# They say something to the model, which reads them in the prompt, and nothing about what conforms.
_REMARKS = frozenset(
    (
        "title",
        "description",
        "examples",
        "default",
        "$comment",
        "$schema",
        "deprecated",
        "readOnly",
        "writeOnly",
    )
)
_BY_NAME = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
_DATA = frozenset(("const", "enum", "required"))


def argument_schema(parameters: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The schema `parameters` for the place `at` of a larger one, a JSON pointer behind "#".

    Raises `InvalidRequestError` for references to other documents or to anchors, and for nesting beyond a hundred.
    """
    own = {key: value for key, value in parameters.items() if key != "$id"}
    moved: dict[str, Any] = _moved(own, at, _MAX_DEPTH)
    return moved


def _moved(schema: Any, at: str, depth: int) -> Any:
    if depth == 0:
        raise _refused(f"is nested deeper than {_MAX_DEPTH}; flatten it")
    if isinstance(schema, list):
        return [_moved(entry, at, depth - 1) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _REMARKS:
            continue
        if key in ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"):
            raise _refused(f"holds '{key}'; use '$ref' with a path that begins with '#'")
        if key == "$ref":
            moved[key] = _reference(value, at)
        elif key in _BY_NAME and isinstance(value, dict):
            moved[key] = {name: _moved(entry, at, depth - 1) for name, entry in value.items()}
        else:
            moved[key] = value if key in _DATA else _moved(value, at, depth - 1)
    return moved


def _reference(value: Any, at: str) -> str:
    if not isinstance(value, str) or (value != "#" and not value.startswith("#/")):
        raise _refused(f"refers to {value!r}; a '$ref' here is '#' or begins with '#/'")
    return at + value[1:]


def _refused(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the schema of a function's parameters {why}", param="tools", code="invalid_value"
    )
