"""The functions that a chat may call, and which of them it must."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_TOOLS = 128
_Strict = ConfigDict(strict=True, extra="forbid", frozen=True)


class FunctionDefinition(BaseModel):
    """`parameters` is a JSON schema; without it the function takes none. `strict` has no effect: calls that are required
    always conform, others never have to."""

    model_config = _Strict

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """One function."""

    model_config = _Strict

    type: Literal["function"]
    function: FunctionDefinition

    def template_dict(self) -> dict[str, Any]:
        """As templates expect it, its members always in the same order."""
        function: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            function["description"] = self.function.description
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


class ToolChoice(BaseModel):
    """Whether functions are called: not, as the model likes, at least one, or the one with `name`."""

    model_config = _Strict

    mode: Literal["none", "auto", "required", "named"]
    name: str | None = None

    @property
    def is_forced(self) -> bool:
        return self.mode in ("required", "named")


def _tool_choice(value: Any) -> Any:
    if value in ("none", "auto", "required"):
        return {"mode": value}
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not set(value) == {"type", "function"} or set(function or ()) != {"name"}:
        raise PydanticCustomError(
            "invalid_value",
            'it must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}',
        )
    return {"mode": "named", "name": name}


ToolChoiceField = Annotated[
    ToolChoice,
    BeforeValidator(_tool_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                {
                    "type": "object",
                    "properties": {
                        "type": {"const": "function"},
                        "function": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                            "required": ["name"],
                            "additionalProperties": False,
                        },
                    },
                    "required": ["type", "function"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]
