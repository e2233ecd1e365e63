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

from duologue.dialogue.grammar import Grammar
from duologue.dialogue.sandbox import TemplateEnvironment
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.tool_parser import CallMarkers

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

        Raises `InvalidRequestError` when the schemas are too large.
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
        return Grammar("call", "\n".join((f"start: {start}", f"call: {call}", f"body: {body}", *rules)))

    def _schema(self, function: Mapping[str, Any]) -> dict[str, Any]:
        parameters = dict(function.get("parameters") or _EMPTY)
        parameters.setdefault("type", "object")
        if parameters == {"type": "object", "properties": {}}:
            parameters = dict(_EMPTY)
        schema: dict[str, Any] = {
            "x-guidance": _PLAIN_JSON,
            "type": "object",
            "properties": {"name": {"const": function["name"]}, self.arguments_key: parameters},
            "required": ["name", self.arguments_key],
            "additionalProperties": False,
        }
        for key in ("$defs", "definitions"):  # references are resolved from the root
            if key in parameters:
                schema[key] = parameters.pop(key)
        return schema


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


class MarkedText:
    """The text of a reply with the control tokens that are markers spelled out, which others never are."""

    def __init__(self, format_: ToolFormat, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._shown = {
            tokenizer.special_tokens[marker]: marker
            for marker in (format_.markers.open, format_.markers.close)
            if marker in tokenizer.special_tokens
        }

    def of(self, text: str, token_ids: Sequence[int]) -> str:
        """`text` of the tokens of one event."""
        if not self._shown or self._shown.keys().isdisjoint(token_ids):
            return text
        if len(token_ids) == 1:
            return self._shown[token_ids[0]]
        return "".join(self._shown.get(token, "") or self._tokenizer.decode([token]) for token in token_ids)
