"""A dialogue's messages in the one form that templates get: dictionaries whose content is a string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from duologue.errors import InvalidRequestError


@dataclass(frozen=True)
class Message:
    """One message. `content` is None where a reply consists of tool calls alone."""

    role: str
    content: str | None
    name: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None


MessageLike: TypeAlias = Message | Mapping[str, Any]

# Closed, because templates spell control tokens with it: '<|' + role + '|>'.
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function", "ipython"))


def template_messages(messages: Sequence[MessageLike]) -> list[dict[str, Any]]:
    """The messages as templates expect them: absent fields left out, content a string (None becomes empty,
    text parts are joined by line ends).

    Raises `InvalidRequestError`, naming the field, for an unknown role or content that is not text.
    """
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: MessageLike, where: str) -> dict[str, Any]:
    if isinstance(message, Message):
        fields = {"role": message.role, "content": message.content}
        optional = {name: getattr(message, name) for name in ("name", "tool_calls", "tool_call_id")}
        fields |= {name: value for name, value in optional.items() if value}
    else:
        fields = {k: v for k, v in message.items() if k == "content" or v is not None}
    role = fields.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role is {role!r}; it must be one of {', '.join(sorted(ROLES))}",
            param=f"{where}.role",
            code="invalid_value",
        )
    fields["content"] = _text(fields.get("content"), f"{where}.content")
    return fields


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise InvalidRequestError(
            f"{where} must be a string or a list of text parts", param=where, code="invalid_value"
        )
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            what = f"is of type {kind!r}" if kind not in (None, "text") else "holds no text"
            raise InvalidRequestError(
                f"{where}[{i}] {what}; only parts {{'type': 'text', 'text': '...'}} are supported",
                param=f"{where}[{i}]",
                code="invalid_value",
            )
        texts.append(part["text"])
    return "\n".join(texts)
