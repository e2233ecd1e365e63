"""`POST /v1/chat/completions`: from a request's bytes to a whole or streamed reply."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import uuid
from typing import TYPE_CHECKING

from duologue.api.chat import ChatCompletionRequest, parse_chat_request
from duologue.api.errors import HttpError, ModelNotFoundError, error_response
from duologue.api.replies import ChunkEncoder, Usage, chat_completion, error_event
from duologue.errors import DuologueError
from duologue.server.http import ClientDisconnected, read_body, send_error, send_json
from duologue.server.mailbox import Mailbox, Postman
from duologue.server.metrics import Metrics, RequestClock

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from duologue.engine.engine import Engine
    from duologue.engine.events import TokenEvent
    from duologue.server.flight import Flights

logger = logging.getLogger("duologue.server")

# What takes about a millisecond on the event loop; more of it must not hold up the streams of others.
_INLINE_PARSE_BYTES = 128 * 1024
_INLINE_ENCODE_CHARS = 8192
_CHARS_PER_MESSAGE = 64  # rendering costs something for each message, however short

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class ChatCompletions:
    """The endpoint, as a plain ASGI application."""

    def __init__(
        self, engine: Engine, flights: Flights, postman: Postman, metrics: Metrics, max_body_bytes: int
    ) -> None:
        self._engine = engine
        self._flights = flights
        self._postman = postman
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

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
            body = await read_body(scope, receive, self._max_body_bytes)
            outcome = await self._reply(body, receive, send, clock)
        except ClientDisconnected:
            outcome = "disconnect"
        except DuologueError as error:
            response = error_response(error)
            outcome = "refused" if response.status < 500 else "error"
            await send_error(send, response)
        finally:
            self._flights.leave()
            self._metrics.in_flight.dec()
            clock.end(outcome)

    async def _reply(self, body: bytes, receive: Receive, send: Send, clock: RequestClock) -> str:
        """Runs one generation; returns its outcome. Raises only before the response starts."""
        loop = asyncio.get_running_loop()
        if len(body) <= _INLINE_PARSE_BYTES:
            request = parse_chat_request(body)
        else:
            request = await loop.run_in_executor(None, parse_chat_request, body)
        engine = self._engine
        if request.model != engine.model_name:
            raise ModelNotFoundError(request.model, engine.model_name)
        params = request.sampling_params()
        prompt_ids = await self._encode(request)
        mailbox = Mailbox(loop)
        handle = engine.submit(prompt_ids, params, functools.partial(self._postman.post, mailbox))
        self._flights.started(handle)
        watcher = asyncio.ensure_future(_watch(receive, mailbox))
        try:
            if request.stream:
                return await self._stream(request, mailbox, send, clock)
            return await self._whole(mailbox, send, clock)
        finally:
            watcher.cancel()
            self._flights.stop(handle)

    async def _encode(self, request: ChatCompletionRequest) -> list[int]:
        messages = request.template_messages()
        if sum(len(message["content"]) + _CHARS_PER_MESSAGE for message in messages) <= _INLINE_ENCODE_CHARS:
            return self._engine.encode_chat(messages)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._engine.encode_chat, messages)

    async def _whole(self, mailbox: Mailbox, send: Send, clock: RequestClock) -> str:
        texts: list[str] = []
        while True:
            events = await mailbox.take()
            if not events:
                return "disconnect"
            for event, at_s in events:
                clock.token(event, at_s)
                texts.append(event.text)
            last = events[-1][0]
            if last.finish_reason is not None:
                break
        _raise_failure(last)
        completion = chat_completion(
            _completion_id(),
            int(time.time()),
            self._engine.model_name,
            "".join(texts),
            last.finish_reason,
            _usage(last),
        )
        await send_json(send, completion)
        return last.finish_reason

    async def _stream(
        self, request: ChatCompletionRequest, mailbox: Mailbox, send: Send, clock: RequestClock
    ) -> str:
        encoder = ChunkEncoder(
            _completion_id(), int(time.time()), self._engine.model_name, with_usage=request.include_usage
        )
        started = False
        while True:
            events = await mailbox.take()
            if not events:
                return "disconnect"
            for event, at_s in events:
                clock.token(event, at_s)
            last = events[-1][0]
            text = last.text if len(events) == 1 else "".join([event.text for event, _ in events])
            reason = last.finish_reason
            chunk = encoder.delta(text) if text else b""
            if not started:
                _raise_failure(last)  # nothing is sent yet, so the client can still get a proper status
                await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
                chunk = encoder.role() + chunk
                started = True
            if reason is None:
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                continue
            try:
                _raise_failure(last)
                chunk += encoder.finish(reason, _usage(last))
            except DuologueError as error:
                chunk += error_event(error_response(error).body())
            await send({"type": "http.response.body", "body": chunk})
            return reason


async def _watch(receive: Receive, mailbox: Mailbox) -> None:
    """Closes the mailbox when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    mailbox.close()


def _raise_failure(event: TokenEvent) -> None:
    """Raises what a client is told when its generation ended without a reply."""
    if event.finish_reason == "abort":
        raise HttpError(503, "The server is shutting down and stopped this reply.", code="shutting_down")
    if event.finish_reason == "error":
        logger.error("generation failed: %s", event.error)
        raise HttpError(500, f"The engine failed on this request: {event.error}", code="engine_error")


def _usage(event: TokenEvent) -> Usage:
    return Usage(event.prompt_tokens, event.completion_tokens, event.cached_tokens)


def _completion_id() -> str:
    return f"chatcmpl-{uuid.uuid4().hex}"
