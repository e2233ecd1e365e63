"""A dialogue as token ids, and what each of them came from.

The prompt is a sequence of parts: a control token, a text, or a reply that was spliced in as ids. Which message
a character of the prompt belongs to is found out when somebody asks: after a cache miss, or for the window
that is kept before the last user message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from duologue.dialogue.marked_chat import ContentSpan, MarkedChat
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.truncation import PINNED_ROLES

_MAX_SKIPPED_BYTES = 8  # of text that the tokenizer has no token for
_HEADER_TOKENS = 4


@dataclass(frozen=True)
class Location:
    """What a token belongs to. `character` counts in the content of the request's `messages[message]`; without a
    message, it is an insert's, and None for what the template writes by itself. `text` is the piece of the prompt
    from there on, for showing."""

    message: int | None
    character: int | None
    text: str

    @property
    def name(self) -> str:
        """In the terms of the request: `messages[3].content, character 17`, `insert, character 3` or `template`."""
        if self.character is None:
            return "template"
        place = "insert" if self.message is None else f"messages[{self.message}].content"
        return f"{place}, character {self.character}"


@dataclass(frozen=True)
class SplicedReply:
    """`ids[start:end]` of the prompt are a reply as it was generated, the content of `messages[message]`."""

    message: int
    start: int
    end: int


@dataclass(frozen=True)
class Part:
    """Characters `[start, end)` of piece `piece` of the prompt and the token at which they begin."""

    piece: int
    start: int
    end: int
    token: int
    spliced: bool = False


@dataclass(frozen=True, eq=False)
class EncodedDialogue:
    """A prompt.

    `ids` (int32, read-only) end where the reply goes on: after the generation prompt, or inside the last message
    that is to be continued. That message's text so far is `reply_text`, its ids begin at `reply_start`; otherwise
    these are `""` and `len(ids)`. Of the finished reply, `ids[:reply_start]`, `reply_text` plus the new text, and
    `ids[reply_start:]` plus the new ids belong into the `ReplyStore`. `origins` are the places in the request of
    the messages that were encoded, None for one that is not from there. `passed`: see PlacedMessages.
    """

    ids: npt.NDArray[np.int32]
    reply_start: int
    reply_text: str
    spliced: tuple[SplicedReply, ...]
    origins: tuple[int | None, ...]
    passed: frozenset[int]
    _chat: MarkedChat = field(repr=False)
    _parts: tuple[Part, ...] = field(repr=False)
    _spans: Mapping[int, Sequence[ContentSpan]] = field(repr=False)  # as far as they were looked for
    _tokenizer: Tokenizer = field(repr=False)

    @cached_property
    def turn_boundaries(self) -> tuple[int, int] | None:
        """Numbers of tokens before the last user message and up to the end of its content. A dialogue that
        differs in or after that content has at least the former in common: the end of the message's header is
        left out, as it may be encoded together with what follows. None if there is no such message or the
        template does not show it as it is."""
        users = self._users
        content = self.content_tokens(users[-1]) if users else None
        if content is None:
            return None
        before, after = content
        number = bisect_right(self._parts, before - 1, key=lambda part: part.token) - 1
        header = 0
        if number >= 0 and isinstance(self._chat.pieces[self._parts[number].piece], str):
            # No token spans the beginning of a part, and in a header of words few depend on what follows.
            header = min(before - self._parts[number].token, _HEADER_TOKENS)
        return before - header, after

    @cached_property
    def history_begin(self) -> int | None:
        """Number of tokens up to the end of the first user message: dialogues that part earlier are different
        ones. None if there is none or the template does not show it as it is."""
        content = self.content_tokens(self._users[0]) if self._users else None
        return None if content is None else content[1]

    @cached_property
    def persona_end(self) -> int | None:
        """Number of tokens up to the end of the leading system messages, which other dialogues may have in common. None if there
        are none or the template does not show them as they are."""
        count = 0
        for message in self._chat.plain:
            if message["role"] not in PINNED_ROLES:
                break
            count += 1
        content = self.content_tokens(count - 1) if count else None
        return None if content is None else content[1]

    def content_tokens(self, message: int) -> tuple[int, int] | None:
        """Begin and end of the tokens of this message's content (its place among the encoded messages). A token
        that also holds characters of what surrounds the content is included. None if the content is empty or
        the template does not show it as it is."""
        span = _span_of(message, self._spans) or _span_of(message, self._chat.spans([message]))
        if span is None:
            return None
        return self._token_at(span.piece, span.start), self._token_at(span.piece, span.end, whole=True)

    def in_passed_insert(self, token: int) -> bool:
        """Whether it is here, right behind a user message, that an insert for one turn stood in an earlier prompt. Raises
        `IndexError` past the prompt."""
        if not self.passed or self.locate(token).message is not None:
            return False
        before = [i for i in self._users if (self.content_tokens(i) or (0, token + 2))[1] <= token + 1]
        return bool(before) and self.origins[before[-1]] in self.passed

    @cached_property
    def _users(self) -> list[int]:
        return [i for i, message in enumerate(self._chat.plain) if message["role"] == "user"]

    def locate(self, token: int) -> Location:
        """What the token at this position belongs to; where a token spans a border, its first character counts.

        Characters are exact but for text that the tokenizer normalises. Raises `IndexError` past the prompt.
        """
        if not 0 <= token < len(self.ids):
            raise IndexError(f"token {token} is outside the prompt of {len(self.ids)} tokens")
        if not self._parts or token < self._parts[0].token:
            return Location(None, None, "")  # begin of text
        number = bisect_right(self._parts, token, key=lambda part: part.token) - 1
        part = self._parts[number]
        piece = self._chat.pieces[part.piece]
        if isinstance(piece, int):
            return Location(None, None, self._tokenizer.decode([piece], skip_special=False))
        at = part.start + self._character_at(piece[part.start : part.end], part.token, token)
        span = next((s for s in self._all_spans.get(part.piece, ()) if s.start <= at < s.end), None)
        if span is None and part.spliced:  # white space at its end that the client or the template trimmed
            spans = self._all_spans.get(part.piece, ())
            span = next((s for s in spans if s.start <= part.start < s.end), None)
        if span is None:
            return Location(None, None, piece[at:])
        return Location(self.origins[span.message], at - span.start + span.lead, piece[at:])

    @cached_property
    def _all_spans(self) -> dict[int, list[ContentSpan]]:
        return self._chat.spans(range(len(self._chat.plain)))

    def _token_at(self, piece: int, character: int, *, whole: bool = False) -> int:
        """Tokens before a character of a text piece; one that holds characters of both sides counts if
        `whole`."""
        parts = [part for part in self._parts if part.piece == piece]
        part = next((p for p in reversed(parts) if p.start < character or p is parts[0]), None)
        if part is None:  # the prompt ends before it
            return len(self.ids)
        number = self._parts.index(part)
        end = self._parts[number + 1].token if number + 1 < len(self._parts) else len(self.ids)
        if character >= part.end:
            return end
        text = self._chat.pieces[piece]
        assert isinstance(text, str)
        aligned = _Alignment(text[part.start : part.end], self._tokenizer)
        wanted = len(text[part.start : character].encode("utf-8", "surrogatepass"))
        for token in range(part.token, end):
            if aligned.at_byte >= wanted:
                return token
            aligned.push(int(self.ids[token]))
            if aligned.at_byte > wanted and not whole:
                return token
        return end

    def _character_at(self, text: str, first: int, token: int) -> int:
        """The character of `text`, whose tokens begin at `first`, with which this token begins."""
        aligned = _Alignment(text, self._tokenizer)
        for token_id in self.ids[first:token]:
            aligned.push(int(token_id))
        begin = aligned.begin_of(int(self.ids[token]))
        return len(aligned.data[:begin].decode("utf-8", "ignore"))


def _span_of(message: int, spans: Mapping[int, Sequence[ContentSpan]]) -> ContentSpan | None:
    return next((span for found in spans.values() for span in found if span.message == message), None)


class _Alignment:
    """Goes along the bytes of a text with the bytes of its tokens. Bytes that have no token are passed over."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self.data = text.encode("utf-8", "surrogatepass")
        self.at_byte = 0
        self._tokenizer = tokenizer
        self._first = True

    def push(self, token_id: int) -> None:
        """Goes past the token."""
        for byte in self._bytes(token_id):
            self.at_byte = min(self._find(byte) + 1, len(self.data))
        self._first = False

    def begin_of(self, token_id: int) -> int:
        """Where the bytes of the next token begin."""
        return self._find(self._bytes(token_id)[0]) if self._bytes(token_id) else self.at_byte

    def _bytes(self, token_id: int) -> bytes:
        data = self._tokenizer.token_bytes(token_id)
        if self._first and not self.data.startswith(data):
            return data.lstrip()  # white space put before the first word, or trimmed by the client
        return data

    def _find(self, byte: int) -> int:
        found = self.data.find(byte, self.at_byte, self.at_byte + _MAX_SKIPPED_BYTES)
        return found if found >= 0 else self.at_byte


def as_ids(chunks: Sequence[array[int]]) -> npt.NDArray[np.int32]:
    """All ids in one read-only array."""
    ids = np.frombuffer(b"".join(chunk.tobytes() for chunk in chunks), dtype=np.int32)
    ids.flags.writeable = False
    return ids
