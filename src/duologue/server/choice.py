"""One of a request's choices while it is generated."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from duologue.dialogue.tool_parser import ToolCallText

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duologue.dialogue.tool_parser import Piece, ToolCallParser
    from duologue.engine.events import TokenEvent, TokenLogprob
    from duologue.engine.request import Request
    from duologue.server.metrics import ChoiceClock


class Choice:
    """What has been generated so far."""

    __slots__ = ("calls", "clock", "handle", "index", "last", "logprobs", "pieces", "texts", "token_ids")

    def __init__(self, index: int, clock: ChoiceClock) -> None:
        self.index = index
        self.clock = clock
        self.handle: Request | None = None
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.calls: ChoiceCalls | None = None
        self.pieces: list[Piece] = []  # text and calls that were read and not yet sent
        self.last: TokenEvent | None = None  # once it has ended

    def add(self, event: TokenEvent, at_s: float) -> None:
        """Its next event."""
        self.clock.token(event, at_s)
        self.texts.append(event.text)
        self.token_ids.extend(event.token_ids)
        if event.logprobs:
            self.logprobs.extend(event.logprobs)
        if event.finish_reason is not None:
            self.last = event
        if self.calls is not None:
            self.pieces += self.calls.read(event)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def finish_reason(self) -> str:
        assert self.last is not None
        assert self.last.finish_reason is not None
        if self.last.finish_reason == "stop" and self.calls is not None and self.calls.made:
            return "tool_calls"
        return self.last.finish_reason


class ChoiceCalls:
    """The calls of functions in one choice. `text` is what of the reply is no call."""

    def __init__(self, parser: ToolCallParser) -> None:
        self._parser = parser
        self._texts: list[str] = []
        self.made: list[tuple[str, ToolCallText]] = []
        """Of each call its id and, so far, its text."""

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def read(self, event: TokenEvent) -> list[Piece]:
        """The pieces that an event completes."""
        pieces = self._parser.push(event.text)
        if event.finish_reason is not None:
            pieces += self._parser.flush()
        self._keep(pieces)
        return pieces

    def _keep(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                self._texts.append(piece)
            elif piece.name is not None:
                self.made.append((f"call_{uuid.uuid4().hex[:24]}", ToolCallText(piece.name, piece.arguments)))
            else:
                call_id, call = self.made[piece.number]
                self.made[piece.number] = (call_id, ToolCallText(call.name, call.arguments + piece.arguments))
