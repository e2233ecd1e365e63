"""From a request's bytes to fields, and from a field that is wrong to an error that names it."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import ErrorDetails, from_json

from duologue.api.errors import clipped
from duologue.errors import InvalidRequestError


def json_object(body: bytes) -> dict[str, Any]:
    """The members of the JSON object that `body` is. Raises `InvalidRequestError`.

    An object that has a member twice is refused at any depth: of two readers on a request's way (a gateway, a server) one might
    take the first and the other the last.
    """
    try:
        text = body.decode("utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"The request body is not valid UTF-8 (byte {error.start}); send JSON encoded as UTF-8.",
            code="invalid_utf8",
        ) from None
    try:
        fields = from_json(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"The request body is not valid JSON: {error}.", code="invalid_json"
        ) from None
    if not isinstance(fields, dict):
        raise InvalidRequestError("The request body must be a JSON object.", code="invalid_json")
    # The first parser has bounded the depth; this one, which shows all members, need not make numbers.
    json.loads(text, object_pairs_hook=_refuse_repeated, parse_int=len, parse_float=len)
    return fields


def _refuse_repeated(members: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in members}
    if len(names) == len(members):
        return
    for name, _ in members:
        if name not in names:
            raise InvalidRequestError(
                f"The request body has the field '{name[:80]}' twice in one object; send it once.",
                param=name[:80],
                code="invalid_json",
            )
        names.remove(name)


_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_value": "unsupported_value",
    "greater_than_equal": "below_min_value",
    "greater_than": "below_min_value",
    "less_than_equal": "above_max_value",
    "less_than": "above_max_value",
    "too_short": "empty_array",
    "too_long": "array_above_max_length",
    "string_too_short": "empty_string",
    "string_too_long": "string_above_max_length",
}


def invalid_field(error: ErrorDetails) -> InvalidRequestError:
    """A failed validation in OpenAI's words."""
    param = clipped(_param(error["loc"]))
    kind = error["type"]
    code = _CODES.get(kind, "invalid_type" if kind.endswith("_type") else "invalid_value")
    if kind == "missing":
        message = f"Missing required parameter: '{param}'."
    elif kind == "extra_forbidden":
        message = f"Unknown parameter: '{param}'."
    else:
        reason = error["msg"][:1].lower() + error["msg"][1:].replace(" after validation", "")
        message = f"Invalid value for '{param}': {reason}{_shown(error['input'])}."
    return InvalidRequestError(message, param=param, code=code)


def _param(location: tuple[int | str, ...]) -> str:
    """OpenAI's spelling of a place in the request: `messages[0].content`."""
    path = ""
    for step in location:
        if step == "[key]":  # pydantic's word for a member whose name is wrong, which comes before it
            continue
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _shown(value: Any) -> str:
    """A scalar is worth showing; whole messages are not."""
    if value is None or isinstance(value, bool):
        return f", got {json.dumps(value)}"
    if isinstance(value, (int, float)):
        return f", got {value}" if abs(value) < 1e30 else ""
    return ""
