"""The way of token events from the engine's thread to the coroutines that write responses.

The engine calls `Postman.post` on its own thread, once per sequence and step, and must not wait. Waking the
event loop costs a system call, so a step wakes it once, however many sequences it served. A coroutine that
comes late takes all that has arrived as one piece: a slow client or a busy loop costs fewer, larger writes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from duologue.engine.events import TokenEvent


Arrival: TypeAlias = "tuple[int, TokenEvent, float]"
"""Which of a request's choices, its event, and the `time.perf_counter()` of when it was made."""


class Mailbox:
    """Events of one request's choices. Used on the event loop only; one coroutine takes."""

    __slots__ = ("_arrived", "_closed", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: list[Arrival] = []
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, arrival: Arrival) -> None:
        self._arrived.append(arrival)
        self._wake()

    def close(self) -> None:
        """Nobody wants this reply any more: `take` returns nothing from now on."""
        self._closed = True
        self._wake()

    async def take(self) -> list[Arrival]:
        """All events since the last call; waits for the first one.

        Empty once the mailbox is closed.
        """
        if not self._arrived and not self._closed:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._closed:
            return []
        arrived, self._arrived = self._arrived, []
        return arrived

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Postman:
    """Carries events across threads into mailboxes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._bag: deque[tuple[Mailbox, Arrival]] = deque()
        self._called = False

    def post(self, mailbox: Mailbox, choice: int, event: TokenEvent) -> None:
        """Called on the engine's thread; returns at once."""
        # The order matters: whoever sees `_called` set relies on a delivery that is still to empty the bag.
        self._bag.append((mailbox, (choice, event, time.perf_counter())))
        if self._called:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop is closed, so no client is left to hear of the event
            self._bag.clear()

    def _deliver(self) -> None:
        self._called = False
        while self._bag:
            mailbox, arrival = self._bag.popleft()
            mailbox.put(arrival)
