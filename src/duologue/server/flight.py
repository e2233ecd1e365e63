"""Which generations are in the air, and how a server comes to rest (`/ready` and the drain)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duologue.api.errors import HttpError

if TYPE_CHECKING:
    from duologue.engine.engine import Engine
    from duologue.engine.request import Request


class Flights:
    """The running generations of one server, of all its engines. Used on the event loop only."""

    def __init__(self) -> None:
        self._requests: dict[Request, Engine] = {}
        self._pending = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False
        self.warming = False  # the cache is being filled; replies are given, but others are better asked

    def enter(self) -> None:
        """Counts a request in before it reaches the engine. Raises `HttpError` 503 while draining."""
        if self.draining:
            raise HttpError(503, "The server is shutting down; try again later.", code="shutting_down")
        self._pending += 1
        self._empty.clear()

    def leave(self) -> None:
        """Undoes `enter`."""
        self._pending -= 1
        if self._pending == 0:
            self._empty.set()

    @property
    def count(self) -> int:
        """Requests between `enter` and `leave`."""
        return self._pending

    def started(self, engine: Engine, request: Request) -> None:
        self._requests[request] = engine

    def stop(self, request: Request) -> None:
        """Ends a generation; one that is complete already is only forgotten."""
        engine = self._requests.pop(request, None)
        if engine is not None:
            engine.abort(request)

    async def drain(self, timeout_s: float) -> bool:
        """Refuses new generations and waits until the running ones are done; aborts those that take too long.

        Returns whether all of them could finish.
        """
        self.draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except asyncio.TimeoutError:
            self.abort_all()
            return False
        return True

    def abort_all(self) -> None:
        """Ends every running generation; their clients see an error at the end of what they have."""
        self.draining = True
        for request, engine in tuple(self._requests.items()):
            engine.abort(request)
