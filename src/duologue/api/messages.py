"""The messages of a chat as clients send them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

MAX_MESSAGES = 10_000
MAX_TOOL_CALLS = 128
_Strict = ConfigDict(strict=True, extra="forbid", frozen=True)
_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_IGNORED = ("refusal", "annotations", "function_call", "audio")


def _text(content: Any) -> Any:
    """One string out of a string or a list of text parts (joined by newlines, as most servers do)."""
    if not isinstance(content, list):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            kind, part = "text", {"text": part.get("refusal")}
        if kind != "text":
            found = f"type '{kind[:40]}'" if isinstance(kind, str) else "no type"
            raise PydanticCustomError(
                "unsupported_value",
                "part {index} has {found}, but only text parts are supported",
                {"index": index, "found": found},
            )
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("invalid_type", "part {index} has no string 'text'", {"index": index})
        texts.append(part["text"])
    return "\n".join(texts)


def _object_text(arguments: str) -> str:
    if not arguments.strip():
        return "{}"  # how some clients spell a call without arguments
    try:
        if isinstance(from_json(arguments), dict):
            return arguments
    except ValueError:
        pass
    raise PydanticCustomError(
        "invalid_value", "it must be the text of a JSON object, because chat templates show its members"
    )


class FunctionCall(BaseModel):
    """What was called; `arguments` is JSON as text."""

    model_config = _Strict

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: Annotated[str, AfterValidator(_object_text)]


class ToolCall(BaseModel):
    """One call in a message of the assistant."""

    model_config = _Strict

    id: Annotated[str, Field(max_length=256)] = ""
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # streams have it, and some clients send it back

    def template_dict(self) -> dict[str, Any]:
        """As templates expect it: with the arguments as an object."""
        function = {"name": self.function.name, "arguments": json.loads(self.function.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(BaseModel):
    """One message. `developer` is OpenAI's newer word for `system` and reaches the template as such."""

    model_config = _Strict

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str,
        BeforeValidator(_text),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}),
    ]
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, message: Any) -> Any:
        """Replies may be sent back whole, so their empty members (`refusal`, `audio`) are dropped."""
        if not isinstance(message, dict):
            return message
        if message.get("role") == "function":
            raise PydanticCustomError(
                "unsupported_value", "messages of role 'function' are not supported; use 'tool'"
            )
        for name in ("function_call", "audio"):
            if message.get(name) is not None:
                raise PydanticCustomError("unsupported_value", "'{name}' is not supported", {"name": name})
        kept = {name: value for name, value in message.items() if name not in _IGNORED}
        if kept.get("tool_calls") in (None, []):
            kept.pop("tool_calls", None)
        elif message.get("role") != "assistant":
            raise PydanticCustomError("invalid_value", "only messages of the assistant have 'tool_calls'")
        elif kept.get("content") is None:
            kept["content"] = ""
        if kept.get("tool_call_id") is not None and message.get("role") != "tool":
            raise PydanticCustomError("invalid_value", "only messages of role 'tool' have a 'tool_call_id'")
        return kept

    @property
    def uses_tools(self) -> bool:
        return self.role == "tool" or self.tool_calls is not None

    @property
    def chars(self) -> int:
        """Characters of all its text."""
        calls = sum(len(call.function.name) + len(call.function.arguments) for call in self.tool_calls or ())
        return len(self.content) + len(self.name or "") + calls

    def template_dict(self) -> dict[str, Any]:
        """The message as chat templates expect it."""
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls is not None:
            message["tool_calls"] = [call.template_dict() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message
