"""Stop strings over streamed text: none of a stop string ever leaves, wherever the tokens cut it.

An Aho-Corasick automaton reads each character once, however many stop strings there are. Its depth after a
character is the length of the longest end of the text that begins some stop string: exactly what has to be
held back.

Of several stop strings, the one that is complete first counts, and of those complete at the same character
the longest. That depends on the text alone, not on how it is cut into tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from duologue.errors import InvalidRequestError


class StopMatcher:
    """Matches `stop_strings` in one reply. An empty stop string is an `InvalidRequestError`."""

    def __init__(self, stop_strings: Iterable[str] = ()) -> None:
        self._next: list[dict[str, int]] = [{}]  # per state, the trie's edges
        self._fallback: list[int] = [0]  # per state, the longest proper end of its string that is a state
        self._depth: list[int] = [0]
        self._match: list[str | None] = [None]
        for stop in stop_strings:
            if not stop:
                raise InvalidRequestError(
                    "a stop string must not be empty", param="stop", code="empty_string"
                )
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""
        self._matched = False

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self._next[state]:
                self._next[state][char] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][char]
        self._match[state] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                self._fallback[child] = self._step(self._fallback[state], char)
                queue.append(child)
            if self._match[state] is None:
                self._match[state] = self._match[self._fallback[state]]

    def _step(self, state: int, char: str) -> int:
        edges = self._next
        while state and char not in edges[state]:
            state = self._fallback[state]
        return edges[state].get(char, 0)

    def push(self, text: str) -> tuple[str, str | None]:
        """Takes the next piece of the reply. Returns the text that may be shown and the stop string that was
        met.

        Once one is met, the reply is over: later calls return `("", None)`.
        """
        if self._matched:
            return "", None
        if not self._next[0]:
            return text, None
        state, held = self._state, self._held + text
        for at, char in enumerate(text, start=len(self._held) + 1):
            state = self._step(state, char)
            stop = self._match[state]
            if stop is not None:
                self._matched = True
                self._held = ""
                return held[: at - len(stop)], stop
        self._state = state
        safe = len(held) - self._depth[state]
        self._held = held[safe:]
        return held[:safe], None

    def flush(self) -> str:
        """Ends the reply without a stop string: what was held back may be shown after all."""
        rest, self._held = self._held, ""
        self._state = 0
        return rest
