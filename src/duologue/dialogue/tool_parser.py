"""Calls of functions out of a reply's text, while it is still being written.

A call is a JSON object with a name and arguments. When the name comes first, as models write it, the arguments
are passed on as they come; otherwise the call is read when it is complete. What begins like a call and turns
out to be none is given back as text, so that nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias

_HEAD = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_MAX_CALLS = 128
_MAX_DEPTH = 100


@dataclass(frozen=True)
class CallDelta:
    """A piece of call `number`: its beginning has the `name`; `arguments` is more of their text."""

    number: int
    arguments: str
    name: str | None = None


@dataclass(frozen=True)
class ToolCallText:
    """A whole call; `arguments` is what the model wrote."""

    name: str
    arguments: str


@dataclass(frozen=True)
class CallMarkers:
    """How a template has the model write calls: after `open`, each object by itself.

    `close` ends each one, or is empty; `in_list` says that the objects are the entries of a JSON list. With an empty `open`
    a reply that begins with an object consists of calls, if that object has the name of a function and arguments.
    """

    open: str
    close: str = ""
    in_list: bool = False


Piece: TypeAlias = "str | CallDelta"


class ToolCallParser:
    """Reads one reply. `push` and `flush` give text (str) and pieces of calls, in order; calls past `max_calls` are dropped.

    `names` are those of the functions. Where no marker tells a call from other JSON, it has to name one of them.
    """

    def __init__(self, markers: CallMarkers, names: Collection[str], max_calls: int = _MAX_CALLS) -> None:
        self._markers = markers
        self._names = None if markers.open else frozenset(names)
        self._max_calls = max_calls
        self._unread = ""
        self._consumed = ""  # read, but neither text nor part of a call yet
        self._space = ""  # white space around calls is no reply: it waits for what follows
        self._written = False
        self._object = _ObjectReader(self._names)
        self._dropped = False  # the object is a call too many
        self._state: Callable[[list[Piece]], bool] = self._read_text
        self.count = 0
        """Calls that have begun."""

    def push(self, text: str) -> list[Piece]:
        """The next piece of the reply."""
        self._unread += text
        out: list[Piece] = []
        while self._unread and self._state(out):
            pass
        return out

    def flush(self) -> list[Piece]:
        """Ends the reply."""
        out: list[Piece] = []
        if self._state == self._read_object and not self._object.begun:
            self._write(out, self._consumed + self._object.raw)
        elif self._state == self._read_gap and self._consumed.strip("[],; \n\t"):
            self._write(out, self._consumed)
        elif self._state == self._read_close:  # which is all that has come of the marker
            self._unread = ""
        self._write(out, self._unread)
        if self._space and not self.count:
            out.append(self._space)
        self._unread = self._consumed = self._space = ""
        return out

    def _write(self, out: list[Piece], text: str) -> None:
        if text.isspace() and (self.count or not self._written):
            self._space += text
        elif text:
            out.append(self._space + text)
            self._space, self._written = "", True

    # Each state reads from `_unread`, and returns False when it needs more.

    def _read_text(self, out: list[Piece]) -> bool:
        marker = self._markers.open
        if not marker:
            stripped = self._unread.lstrip()
            if not self._written and stripped.startswith("{"):
                self._unread, self._state = stripped, self._read_gap
                return True
            self._write(out, self._unread)
            self._unread = ""
            return False
        before, found, after = self._unread.partition(marker)
        if found:
            self._write(out, before)
            self._consumed, self._unread, self._state = marker, after, self._read_gap
            return True
        keep = _overlap(self._unread, marker)
        self._write(out, self._unread[: len(self._unread) - keep])
        self._unread = self._unread[len(self._unread) - keep :]
        return False

    def _read_gap(self, out: list[Piece]) -> bool:
        """Between the marker and an object, or between two."""
        stripped = self._unread.lstrip()
        self._consumed += self._unread[: len(self._unread) - len(stripped)]
        self._unread = stripped
        if not stripped:
            return False
        if stripped[0] == "{":
            self._object, self._state = _ObjectReader(self._names), self._read_object
            self._dropped = self.count >= self._max_calls
        elif stripped[0] in ("[],;" if self._markers.in_list else ";" if not self._markers.open else ""):
            self._consumed += stripped[0]
            self._unread = stripped[1:]
        else:
            self._to_text(out, self._consumed if self._consumed.strip("[],; \n\t") else "")
        return True

    def _to_text(self, out: list[Piece], unreadable: str) -> None:
        self._consumed, self._state = "", self._read_text
        self._written = self._written or not self._markers.open
        self._write(out, unreadable)

    def _read_object(self, out: list[Piece]) -> bool:
        reader = self._object
        begun = reader.begun
        rest = reader.push(self._unread)
        piece = reader.take() if reader.begun else ""
        if reader.begun and not begun:
            self._begin_call(out, piece, reader.name)
        elif piece and not self._dropped:
            out.append(CallDelta(self.count - 1, piece))
        if rest is None:
            self._unread = ""
            return False
        self._unread = rest
        if not reader.begun:
            call = reader.whole()
            if call is None:
                self._to_text(out, self._consumed + reader.raw)
                return True
            self._begin_call(out, call.arguments, call.name)
        self._consumed = ""
        self._state = self._read_close if self._markers.close else self._read_gap
        return True

    def _begin_call(self, out: list[Piece], arguments: str, name: str) -> None:
        self._space = ""
        if self._dropped:
            return
        self.count += 1
        out.append(CallDelta(self.count - 1, arguments, name))

    def _read_close(self, out: list[Piece]) -> bool:
        self._unread = self._unread.lstrip()
        close = self._markers.close
        if close.startswith(self._unread) and self._unread != close:
            return False
        # Without its end the call stands nevertheless.
        self._unread = self._unread.removeprefix(close)
        self._state = self._read_text
        return True


class _ObjectReader:
    """One JSON object, as it comes."""

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = names
        self.raw = ""
        self.name = ""
        self.begun = False  # the name is known, and the arguments are passed on
        self._depth = self._deepest = 0
        self._in_string = self._escaped = False
        self._arguments_from = 0
        self._arguments_end: int | None = None
        self._taken = 0

    def push(self, text: str) -> str | None:
        """Reads on; what follows the object, or None while it is not complete."""
        for at, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
                self._deepest = max(self._deepest, self._depth)
            elif char in "}]":
                self._depth -= 1
                if self._depth == 1 and self.begun and self._arguments_end is None:
                    self._arguments_end = len(self.raw) + at + 1
                if self._depth == 0:
                    self.raw += text[: at + 1]
                    return text[at + 1 :]
            if char == "{" and self._depth == 2 and not self.begun:
                self._look(self.raw + text[: at + 1])
        self.raw += text
        return None

    def _look(self, raw: str) -> None:
        head = _HEAD.match(raw)
        if head is not None and head.end() == len(raw) - 1:
            try:
                name = json.loads(head[1])
            except ValueError:
                return
            if not self._is_function(name):
                return
            self.name, self.begun = name, True
            self._arguments_from = self._taken = head.end()

    def take(self) -> str:
        """The arguments' text that has come since the last call."""
        end = len(self.raw) if self._arguments_end is None else self._arguments_end
        piece = self.raw[self._taken : end]
        self._taken = max(self._taken, end)
        return piece

    def whole(self) -> ToolCallText | None:
        """The call that a complete object is; None when it is none."""
        if self._deepest > _MAX_DEPTH:
            return None
        try:
            call = json.loads(self.raw)
        except ValueError:
            return None
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters"))
        if not self._is_function(name) or (arguments is None and self._names is not None):
            return None
        if arguments is None:
            arguments = {}
        return ToolCallText(name, arguments if isinstance(arguments, str) else json.dumps(arguments))

    def _is_function(self, name: object) -> bool:
        return isinstance(name, str) and bool(name) and (self._names is None or name in self._names)


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of the text that begins the marker."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-size:]):
            return size
    return 0
