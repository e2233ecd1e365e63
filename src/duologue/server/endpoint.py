"""What the endpoints that generate have in common: counting in and out, bodies, errors, and the two ways to reply."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from duologue.api.errors import HttpError, error_response
from duologue.api.replies import Header, error_event
from duologue.errors import DuologueError, InvalidRequestError
from duologue.server.access import tenant_of
from duologue.server.generation import ClientGoneError, Generation
from duologue.server.http import ClientDisconnected, read_body, send_error, send_json
from duologue.server.metrics import RequestClock

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from duologue.engine.engine import Engine
    from duologue.engine.sampling_params import SamplingParams
    from duologue.server.choice import Choice
    from duologue.server.flight import Flights
    from duologue.server.limits import Limits
    from duologue.server.mailbox import Arrival, Postman
    from duologue.server.metrics import Metrics
    from duologue.server.models import ServedModels

_Request = TypeVar("_Request")

# What takes about a millisecond on the event loop; more of it goes to a thread.
_INLINE_PARSE_BYTES = 128 * 1024
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


async def parsed(parse: Callable[[bytes], _Request], body: bytes) -> _Request:
    """`parse(body)`, in a thread when it may take long. Raises what it raises."""
    if len(body) <= _INLINE_PARSE_BYTES:
        return parse(body)
    return await asyncio.get_running_loop().run_in_executor(None, parse, body)


class Replies(ABC):
    """One request's way of writing what its choices become."""

    @abstractmethod
    def whole(self, generation: Generation) -> bytes:
        """The body of a reply that is complete."""

    @abstractmethod
    def begin(self, choices: int) -> bytes:
        """The first events of a stream."""

    @abstractmethod
    def chunk(self, choice: Choice, arrivals: list[Arrival]) -> bytes:
        """The events that a choice's arrivals make, its last one included."""

    @abstractmethod
    def end(self, generation: Generation) -> bytes:
        """What closes a stream."""


class CompletionEndpoint(ABC):
    """An endpoint that generates, as a plain ASGI application."""

    def __init__(
        self, models: ServedModels, flights: Flights, postman: Postman, metrics: Metrics, limits: Limits
    ) -> None:
        self._models = models
        self._flights = flights
        self._postman = postman
        self._metrics = metrics
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        clock = RequestClock(self._metrics)
        outcome = "error"
        try:
            self._flights.enter()
        except HttpError as error:
            clock.end("refused")
            await send_error(send, error_response(error))
            return
        self._metrics.in_flight.inc()
        try:
            body = await read_body(scope, receive, self._limits.max_body_bytes)
            outcome = await self._reply(body, tenant_of(scope), receive, send, clock)
        except (ClientDisconnected, ClientGoneError):
            outcome = "disconnect"
        except DuologueError as error:
            response = error_response(error)
            outcome = "refused" if response.status < 500 else "error"
            await send_error(send, response)
        finally:
            self._flights.leave()
            self._metrics.in_flight.dec()
            clock.end(outcome)

    @abstractmethod
    async def _reply(
        self, body: bytes, tenant: str, receive: Receive, send: Send, clock: RequestClock
    ) -> str:
        """Runs one request; returns its outcome. Raises only before the response starts."""

    async def _prepare(self, engine: Engine, params: SamplingParams, n: int, param: str) -> SamplingParams:
        """Compiles the grammar, and draws a seed where several choices need a common one.

        Raises `InvalidRequestError` that names `param` for a grammar that cannot be compiled, `CapacityError`, and `HttpError` 429
        when the queue is full: that is asked again at the end, but no work should go before it.
        """
        self._limits.refuse_when_full(engine, n)
        if params.grammar is not None:
            try:
                await asyncio.get_running_loop().run_in_executor(None, engine.compile_grammar, params.grammar)
            except InvalidRequestError as error:
                raise InvalidRequestError(
                    str(error), param=param, code=error.code or "invalid_value"
                ) from None
        if n > 1 and params.seed is None:
            return dataclasses.replace(params, seed=secrets.randbits(64))
        return params

    async def _whole(self, generation: Generation, replies: Replies, send: Send) -> str:
        while not generation.finished:
            await generation.take()
        await send_json(send, replies.whole(generation))
        return generation.choices[0].finish_reason

    async def _stream(self, generation: Generation, replies: Replies, send: Send) -> str:
        # An error before the first token can still have a status of its own.
        arrivals = await generation.take()
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        chunk = replies.begin(len(generation.choices))
        while True:
            if len(generation.choices) == 1:
                chunk += replies.chunk(generation.choices[0], arrivals)
            else:
                of_choice: dict[int, list[Arrival]] = {}
                for arrival in arrivals:
                    of_choice.setdefault(arrival[0], []).append(arrival)
                for index, its in of_choice.items():
                    chunk += replies.chunk(generation.choices[index], its)
            if generation.finished:
                await send({"type": "http.response.body", "body": chunk + replies.end(generation)})
                return generation.choices[0].finish_reason
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            try:
                arrivals = await generation.take()
            except DuologueError as error:
                response = error_response(error)
                await send({"type": "http.response.body", "body": error_event(response.body())})
                return "abort" if response.code == "shutting_down" else "error"
            chunk = b""


def new_header(prefix: str, model: str) -> Header:
    """A header with an id of its own."""
    return Header(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)
