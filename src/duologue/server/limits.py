"""How much a server takes on before it says that it is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from duologue.api.errors import HttpError

if TYPE_CHECKING:
    from duologue.engine.engine import Engine

MAX_BODY_BYTES = 8 * 1024 * 1024
_TRY_AGAIN = "Try again later, or ask for less at once."


@dataclass(frozen=True)
class Limits:
    """`max_waiting` choices of each model may wait for memory, each for `max_wait_s` before it starts; a request that finds nobody
    waiting is let in whole."""

    max_body_bytes: int = MAX_BODY_BYTES
    max_waiting: int = 256
    max_wait_s: float = 60.0

    def refuse_when_full(self, engine: Engine, choices: int) -> None:
        """Raises `HttpError` 429 when so many choices more do not fit into the queue."""
        waiting = engine.waiting
        # One that waits for nobody is let in with all its choices, else it never could be.
        if waiting and waiting + choices > self.max_waiting:
            raise HttpError(
                429,
                f"The queue is full: {waiting} requests wait, and at most {self.max_waiting} may. {_TRY_AGAIN}",
                code="queue_full",
            )

    def waited_too_long(self) -> HttpError:
        """What a request is told that has not started in time."""
        return HttpError(
            429,
            f"The server is busy: the request has waited {self.max_wait_s:g} s without starting. {_TRY_AGAIN}",
            code="queue_timeout",
        )
