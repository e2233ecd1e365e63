"""How a model's template writes calls of functions: which of the known formats it is, and the grammar of a call.

There is no standard: the template shows the functions and tells the model, in words or by training, what to
write. The formats here are told apart by what the template's source spells; another one is refused, because
calls that nobody can read would reach the client as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import meta

from duologue.dialogue.argument_schema import argument_schema
from duologue.dialogue.grammar import MAX_GRAMMAR_BYTES, Grammar
from duologue.dialogue.sandbox import TemplateEnvironment
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.tool_parser import CallMarkers
from duologue.errors import InvalidRequestError

_MAX_PARALLEL = 16
# As `tojson` in templates writes it, so that the next turn's prompt repeats the call as it was generated.
_PLAIN_JSON = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class ToolFormat:
    """`name` of the format, its markers, and the text around the objects as the model was trained to write it."""

    name: str
    markers: CallMarkers
    arguments_key: str = "arguments"
    before: str = ""
    after: str = ""
    between: str = ""

    def grammar(
        self, tools: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, *, one: bool, name: str | None = None
    ) -> Grammar:
        """One or more calls of `tools` (with `one` a single call; with `name` of this function only) and nothing else.

        Raises `InvalidRequestError` naming `tools` when the schemas are too large or refer to what cannot be found.
        """
        chosen = [tool["function"] for tool in tools if name in (None, tool["function"]["name"])]
        rules = [f"call{i}: %json {json.dumps(self._schema(function))}" for i, function in enumerate(chosen)]
        body = f"({' | '.join(f'call{i}' for i in range(len(chosen)))})"
        call = " ".join(
            filter(None, (_literal(self.before, tokenizer), "body", _literal(self.after, tokenizer)))
        )
        start = "call" if one else f"call ({_literal(self.between, tokenizer)} call){{0,{_MAX_PARALLEL - 1}}}"
        if self.markers.in_list:
            call = "body"
            start = f'{_literal(self.markers.open, tokenizer)} "[" {start} "]"'
        text = "\n".join((f"start: {start}", f"call: {call}", f"body: {body}", *rules))
        most = MAX_GRAMMAR_BYTES["call"]
        if len(text) > most:  # it is ASCII
            raise InvalidRequestError(
                f"the functions that may be called have schemas of {len(text)} bytes, descriptions left out, more than "
                f"{most}; send fewer functions or smaller schemas",
                param="tools",
                code="invalid_value",
            )
        return Grammar("call", text, self.control_ids(tokenizer))

    def control_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Those of its marks that are control tokens of this model."""
        marks = "".join((self.markers.open, self.markers.close))
        return frozenset(piece for piece in tokenizer.split_control(marks) if isinstance(piece, int))

    def _schema(self, function: Mapping[str, Any]) -> dict[str, Any]:
        parameters = argument_schema(
            function.get("parameters") or _EMPTY, f"#/properties/{self.arguments_key}"
        )
        parameters.setdefault("type", "object")
        if parameters == {"type": "object", "properties": {}}:
            parameters = dict(_EMPTY)
        return {
            "x-guidance": _PLAIN_JSON,
            "type": "object",
            "properties": {"name": {"const": function["name"]}, self.arguments_key: parameters},
            "required": ["name", self.arguments_key],
            "additionalProperties": False,
        }


_HERMES = ToolFormat(
    "hermes",
    CallMarkers("<tool_call>", "</tool_call>"),
    before="<tool_call>\n",
    after="\n</tool_call>",
    between="\n",
)
_MISTRAL = ToolFormat("mistral", CallMarkers("[TOOL_CALLS]", in_list=True), between=", ")
_LLAMA3 = ToolFormat("llama3", CallMarkers(""), arguments_key="parameters", between="; ")


def find_tool_format(template: ChatTemplate) -> ToolFormat | None:
    """The format of a template that shows functions; None when it shows none, or in a way that is not known here."""
    source = template.source
    if "tools" not in meta.find_undeclared_variables(TemplateEnvironment().parse(source)):
        return None
    if "<function=" in source or "[ARGS]" in source:  # neither writes one JSON object for each call
        return None
    if "<tool_call>" in source:
        return _HERMES
    if "[TOOL_CALLS]" in source:
        return _MISTRAL
    if "ipython" in source or "<|python_tag|>" in source:
        return _LLAMA3
    return None


def _literal(text: str, tokenizer: Tokenizer) -> str:
    """A grammar's expression for a text in which control tokens count as such."""
    pieces = (
        f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece)
        for piece in tokenizer.split_control(text)
    )
    return " ".join(pieces)
