"""What a reply may look like, as the client wrote it: structured output before anything is compiled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, get_args

from duologue.errors import InvalidRequestError

GrammarKind = Literal["json_object", "json_schema", "regex", "lark", "choice", "call"]
MAX_GRAMMAR_BYTES: dict[GrammarKind, int] = {
    "json_object": 0,
    "json_schema": 64 << 10,
    "regex": 16 << 10,
    "lark": 16 << 10,
    "choice": 256 << 10,
    "call": 128 << 10,
}
"""What is larger may take a compiler minutes. A choice is one rule of texts, and a call mostly the schemas of up to 128 functions:
both cost less for their length than what a client shapes."""


@dataclass(frozen=True)
class Grammar:
    """`text` is a JSON schema as JSON text, a regular expression or a Lark grammar; empty for `json_object`. A `choice` of texts
    and a `call` of functions are Lark grammars that are made here.

    A `call` alone may ask for control tokens, those of `control_ids`: the template's marks around calls.

    Raises InvalidRequestError for a kind that does not exist and for a text that is missing or larger than
    its kind's `MAX_GRAMMAR_BYTES`. Whether the text means something is known once an engine compiles it.
    """

    kind: GrammarKind
    text: str = ""
    control_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        kinds = get_args(GrammarKind)
        if self.kind not in kinds:
            raise InvalidRequestError(f"a grammar is one of {', '.join(kinds)}, not {self.kind!r}")
        if self.control_ids and self.kind != "call":
            raise InvalidRequestError(
                f"control tokens are out of reach of a {self.kind}; leave out control_ids"
            )
        if self.kind == "json_object":
            if self.text:
                raise InvalidRequestError("json_object takes no text; a schema is json_schema")
            return
        if not self.text:
            raise InvalidRequestError(f"the {self.kind} is empty")
        try:
            size_bytes = len(self.text.encode())
        except UnicodeEncodeError:
            raise InvalidRequestError(
                f"the {self.kind} holds half of a character; send valid Unicode"
            ) from None
        if size_bytes > MAX_GRAMMAR_BYTES[self.kind]:
            raise InvalidRequestError(
                f"the {self.kind} has {size_bytes} bytes, more than {MAX_GRAMMAR_BYTES[self.kind]}; make it smaller"
            )


def lark_string(text: str) -> str:
    """A text as a Lark grammar spells it: as JSON does, but for the one control character that JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
