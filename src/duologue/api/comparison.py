"""Where two dialogues part ways, offline: what `duologue cache explain` prints."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from duologue.api.body import invalid_field, json_object
from duologue.api.chat import ChatMessage
from duologue.dialogue.encoded_dialogue import EncodedDialogue, Location
from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import DuologueError

_SHOWN_CHARS = 60
_LONGEST_HEADER_TOKENS = 64  # that a template writes between two messages


class DialogueFileError(DuologueError):
    """A file that should hold a dialogue does not."""


class _DialogueFile(BaseModel):
    """The body of a chat completion will do: everything but the messages is passed over."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    messages: Annotated[list[ChatMessage], Field(min_length=1)]


def read_dialogue(path: Path) -> list[dict[str, str]]:
    """The messages in a JSON file: a list of them, or an object with `messages`. Raises `DialogueFileError`."""
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        if content.lstrip()[:1] == b"[":
            content = b'{"messages": ' + content + b"}"
        file = _DialogueFile.model_validate(json_object(content))
    except OSError as error:
        raise DialogueFileError(
            f"'{path}' cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None
    except ValidationError as error:
        raise DialogueFileError(f"'{path}': {invalid_field(error.errors(include_url=False)[0])}") from None
    except DuologueError as error:
        raise DialogueFileError(f"'{path}': {str(error).replace('The request body', 'it')}") from None
    return [message.template_dict() for message in file.messages]


@dataclass(frozen=True)
class Comparison:
    """What of dialogue B's prompt a cache that has seen dialogue A's can serve.

    `cause` is "none" when B goes on where A ends (or ends within A), "content" when messages differ, and "template" when they
    are the same up to there and the template writes them differently. `before` and `after` are A's and B's sides at
    `shared_tokens`, None where that dialogue has ended.
    """

    cause: Literal["none", "content", "template"]
    shared_tokens: int
    tokens_a: int
    tokens_b: int
    before: Location | None
    after: Location | None

    @property
    def recomputed_tokens(self) -> int:
        """Of B: at least the last token is computed in any case, for the reply's first."""
        return self.tokens_b - min(self.shared_tokens, self.tokens_b - 1)

    def lines(self) -> list[str]:
        """The findings in words."""
        said = [
            f"A has {self.tokens_a:,} tokens, B {self.tokens_b:,}; they share the first {self.shared_tokens:,}.",
            f"After A, B costs {self.recomputed_tokens:,} {'token' if self.recomputed_tokens == 1 else 'tokens'}.",
        ]
        if self.cause == "none":
            said.append(
                "B goes on where A ends."
                if self.tokens_b > self.tokens_a
                else "B has nothing that A has not."
            )
            return said
        why = (
            "the messages differ there"
            if self.cause == "content"
            else "the messages are the same up to there, so it is the chat template that writes them differently"
        )
        said.append(f"They part at token {self.shared_tokens:,}: {why}.")
        said.extend(f"  {name}: {_side(place)}" for name, place in (("A", self.before), ("B", self.after)))
        return said


def _side(place: Location | None) -> str:
    if place is None:
        return "has ended"
    return f"{place.name}: {json.dumps(place.text[:_SHOWN_CHARS], ensure_ascii=False)}"


def compare_dialogues(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    a: Sequence[Mapping[str, Any]],
    b: Sequence[Mapping[str, Any]],
) -> Comparison:
    """Encodes both as the prompts for their next replies and compares. Raises `InvalidRequestError` or `TemplateError`."""
    pieces = PieceEncoder(tokenizer)
    first, second = (encode_dialogue(template, pieces, messages) for messages in (a, b))
    shared = _common(first.ids, second.ids)
    if shared in (len(first.ids), len(second.ids)):
        cause: Literal["none", "content", "template"] = "none"
    else:
        equal = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        cause = "template" if _message_at(second, shared) < equal else "content"
    return Comparison(
        cause,
        shared,
        len(first.ids),
        len(second.ids),
        first.locate(shared) if shared < len(first.ids) else None,
        second.locate(shared) if shared < len(second.ids) else None,
    )


def _message_at(prompt: EncodedDialogue, token: int) -> int:
    """The message that this token belongs to or leads to."""
    for at in range(token, max(token - _LONGEST_HEADER_TOKENS, 0) - 1, -1):
        message = prompt.locate(at).message
        if message is not None:
            return message if at == token else message + 1
    return 0


def _common(a: np.typing.NDArray[np.int32], b: np.typing.NDArray[np.int32]) -> int:
    size = min(len(a), len(b))
    differing = np.flatnonzero(a[:size] != b[:size])
    return int(differing[0]) if len(differing) else size
