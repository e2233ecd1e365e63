"""What a reply has to look like: `response_format` as OpenAI spells it, `structured_outputs` as vLLM does."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from duologue.dialogue.grammar import Grammar, GrammarKind, lark_string
from duologue.errors import InvalidRequestError

MAX_CHOICES = 10_000
_Strict = ConfigDict(strict=True, extra="forbid", frozen=True)
OLDER_SPELLINGS = {f"guided_{name}": name for name in ("json", "regex", "choice", "grammar")}


class JsonSchemaFormat(BaseModel):
    """A named JSON schema. `strict` has no effect: replies always conform."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """Free text, any JSON object, or JSON that conforms to a schema."""

    model_config = _Strict

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_where_needed(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError(
                "invalid_value", "'json_schema' belongs to the type \"json_schema\", and only to it"
            )
        return self

    def grammar(self) -> Grammar | None:
        """None for free text. Raises `InvalidRequestError` for a schema that is too large."""
        if self.type == "text":
            return None
        if self.json_schema is None or self.json_schema.json_schema is None:
            return Grammar("json_object")
        return _schema_grammar(self.json_schema.json_schema, "response_format.json_schema.schema")


class StructuredOutputs(BaseModel):
    """Exactly one of these."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES)]
        | None
    ) = None
    grammar: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> StructuredOutputs:
        given = (self.json_, self.json_object or None, self.regex, self.choice, self.grammar)
        if sum(value is not None for value in given) != 1:
            raise PydanticCustomError(
                "invalid_value", "it must hold exactly one of json, json_object, regex, choice and grammar"
            )
        return self

    def as_grammar(self) -> Grammar:
        """Raises `InvalidRequestError` for a text that is too large or no schema."""
        if self.json_ is not None:
            return _schema_grammar(self.json_, "structured_outputs.json")
        if self.regex is not None:
            return made_grammar("regex", self.regex, "structured_outputs.regex")
        if self.choice is not None:
            options = " | ".join(map(lark_string, self.choice))
            return made_grammar("choice", f"start: {options}", "structured_outputs.choice")
        if self.grammar is not None:
            return made_grammar("lark", self.grammar, "structured_outputs.grammar")
        return Grammar("json_object")


def _schema_grammar(schema: dict[str, Any] | str, param: str) -> Grammar:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return made_grammar("json_schema", text, param)


def made_grammar(kind: GrammarKind, text: str, param: str) -> Grammar:
    """The grammar, or `InvalidRequestError` that names `param`."""
    try:
        return Grammar(kind, text)
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), param=param, code="invalid_value") from None


def with_structured_outputs(fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` with vLLM's older spellings (`guided_json` and so on) as `structured_outputs`.

    Raises `InvalidRequestError` when there are both or several.
    """
    older = {name: fields[name] for name in OLDER_SPELLINGS if fields.get(name) is not None}
    kept = {name: value for name, value in fields.items() if name not in OLDER_SPELLINGS}
    if not older:
        return kept
    if len(older) > 1 or kept.get("structured_outputs") is not None:
        name = next(iter(older))
        raise InvalidRequestError(
            f"'{name}' contradicts another field that says what the reply looks like; send one of them.",
            param=name,
            code="invalid_value",
        )
    ((name, value),) = older.items()
    return {**kept, "structured_outputs": {OLDER_SPELLINGS[name]: value}}
