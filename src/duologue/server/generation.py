"""All choices of one request, from the engine's queue to their last events."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from duologue.api.errors import HttpError
from duologue.api.replies import Usage
from duologue.engine.request import NO_MARKS, PromptMarks
from duologue.server.choice import Choice
from duologue.server.mailbox import Mailbox

if TYPE_CHECKING:
    from starlette.types import Receive

    from duologue.engine.engine import Engine
    from duologue.engine.events import TokenEvent
    from duologue.engine.sampling_params import SamplingParams
    from duologue.server.flight import Flights
    from duologue.server.limits import Limits
    from duologue.server.mailbox import Arrival, Postman
    from duologue.server.metrics import RequestClock
    from duologue.server.tenant_cache import Running

logger = logging.getLogger("duologue.server")


@dataclass(frozen=True)
class Job:
    """One prompt, to be continued `n` times. Control tokens of `shown_ids` are spelled in its replies."""

    ids: Sequence[int] | npt.NDArray[np.int32]
    marks: PromptMarks = NO_MARKS
    shown_ids: frozenset[int] = frozenset()


class ClientGoneError(Exception):
    """Nobody waits for the reply any more."""


class Generation:
    """Runs `n` choices for each job. Use as a context manager: whatever still runs at its end is stopped."""

    def __init__(self, engine: Engine, flights: Flights, postman: Postman, limits: Limits) -> None:
        self._engine = engine
        self._flights = flights
        self._postman = postman
        self._limits = limits
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._watcher: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late = False
        self._n = 1
        self.choices: list[Choice] = []
        self._unfinished = 0

    def start(
        self,
        jobs: Sequence[Job],
        n: int,
        params: SamplingParams,
        running: Running,
        clock: RequestClock,
        receive: Receive,
    ) -> None:
        """Hands everything to the engine. Raises as `Engine.submit`, and `HttpError` 429 when the queue is full.

        `params` must have a seed when there are several choices, so that all follow from it.
        """
        self._limits.refuse_when_full(self._engine, len(jobs) * n)
        self._n = n
        for job in jobs:
            for number in range(n):
                choice = Choice(len(self.choices), clock.choice())
                choice.handle = self._engine.submit(
                    job.ids,
                    params,
                    functools.partial(self._postman.post, self._mailbox, choice.index),
                    scope=running.scope,
                    marks=job.marks,
                    choice=number,
                    shown_ids=job.shown_ids,
                )
                self.choices.append(choice)
                running.started(choice.handle)
                self._flights.started(self._engine, choice.handle)
        self._unfinished = len(self.choices)
        loop = asyncio.get_running_loop()
        self._watcher = loop.create_task(_watch(receive, self._mailbox))
        self._timer = loop.call_later(self._limits.max_wait_s, self._check_started)

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for choice in self.choices:
            if choice.handle is not None:
                self._flights.stop(choice.handle)

    async def take(self) -> list[Arrival]:
        """The next events, already added to their choices.

        Raises `ClientGoneError`, or `HttpError` when the request waited too long or a choice failed.
        """
        arrivals = await self._mailbox.take()
        if not arrivals:
            raise self._limits.waited_too_long() if self._late else ClientGoneError
        for index, event, at_s in arrivals:
            self.choices[index].add(event, at_s)
            if event.finish_reason is not None:
                self._unfinished -= 1
                _raise_failure(event, self._engine)
        return arrivals

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self._unfinished == 0

    @property
    def usage(self) -> Usage:
        """Of all choices; a prompt counts once, however many choices it has."""
        lasts = [choice.last for choice in self.choices if choice.last is not None]
        firsts = lasts[:: self._n]
        return Usage(
            sum(event.prompt_tokens for event in firsts),
            sum(event.completion_tokens for event in lasts),
            sum(event.cached_tokens for event in firsts),
        )

    def _check_started(self) -> None:
        if all(choice.handle is None or choice.handle.cached_tokens is None for choice in self.choices):
            self._late = True
            self._mailbox.close()


async def _watch(receive: Receive, mailbox: Mailbox) -> None:
    """Closes the mailbox when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    mailbox.close()


def _raise_failure(event: TokenEvent, engine: Engine) -> None:
    """Raises what a client is told when its generation ended without a reply."""
    if event.finish_reason == "abort":
        raise HttpError(503, "The server is shutting down and stopped this reply.", code="shutting_down")
    if event.finish_reason == "error" and engine.failure is None:
        # What ends one reply and not the engine is what the client asked it to look like.
        raise HttpError(400, f"The reply cannot be completed: {event.error}", code="grammar_dead_end")
    if event.finish_reason == "error":
        logger.error("generation failed: %s", event.error)
        raise HttpError(500, f"The engine failed on this request: {event.error}", code="engine_error")
