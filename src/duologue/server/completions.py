"""`POST /v1/chat/completions`: from a request's bytes to a whole or streamed reply."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from duologue.api.errors import HttpError, error_response
from duologue.api.replies import ChunkEncoder, Usage, chat_completion, error_event
from duologue.dialogue.encoder import without_end
from duologue.engine.request import PromptMarks
from duologue.errors import DuologueError
from duologue.server.access import tenant_of
from duologue.server.http import ClientDisconnected, read_body, send_error, send_json
from duologue.server.mailbox import Mailbox, Postman
from duologue.server.metrics import Metrics, RequestClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from duologue.api.chat import ChatCompletionRequest
    from duologue.cache.miss import MissHints
    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.engine.engine import Engine
    from duologue.engine.events import TokenEvent
    from duologue.server.flight import Flights
    from duologue.server.prompts import Prompts
    from duologue.server.tenant_cache import Running, TenantCache

logger = logging.getLogger("duologue.server")

# Places in a long prompt take milliseconds to find, up to 30 in one long message: they are looked for in a thread.
_INLINE_LOOK_TOKENS = 1024
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class ChatCompletions:
    """The endpoint, as a plain ASGI application."""

    def __init__(
        self,
        engine: Engine,
        prompts: Prompts,
        cache: TenantCache,
        flights: Flights,
        postman: Postman,
        metrics: Metrics,
        max_body_bytes: int,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._cache = cache
        self._flights = flights
        self._postman = postman
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._has_windows = any(layer.window for layer in engine.spec.layers)

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
            outcome = await self._reply(body, tenant_of(scope), receive, send, clock)
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

    async def _reply(
        self, body: bytes, tenant: str, receive: Receive, send: Send, clock: RequestClock
    ) -> str:
        """Runs one generation; returns its outcome. Raises only before the response starts."""
        request = await self._prompts.parse(body)
        cache_scope = request.cache_scope(tenant)
        with self._cache.running(cache_scope) as running:
            return await self._generate(request, running, receive, send, clock)

    async def _generate(
        self,
        request: ChatCompletionRequest,
        running: Running,
        receive: Receive,
        send: Send,
        clock: RequestClock,
    ) -> str:
        cache_scope = running.scope
        prompt = await self._prompts.encode(request, cache_scope)
        # Before the prompt itself is stored.
        if len(prompt.ids) <= _INLINE_LOOK_TOKENS:
            report, marks = self._look(request, prompt, cache_scope)
        else:
            report, marks = await asyncio.get_running_loop().run_in_executor(
                None, self._look, request, prompt, cache_scope
            )
        mailbox = Mailbox(asyncio.get_running_loop())
        params = self._engine.chat_params(request.sampling_params())
        post = functools.partial(self._postman.post, mailbox)
        handle = self._engine.submit(prompt.ids, params, post, scope=cache_scope, marks=marks)
        running.started(handle)
        reply = _Reply(report)
        self._flights.started(handle)
        watcher = asyncio.ensure_future(_watch(receive, mailbox))
        try:
            if request.stream:
                return await self._stream(request, reply, mailbox, send, clock)
            return await self._whole(reply, mailbox, send, clock)
        finally:
            # Also what was stopped half-way: the client may continue it.
            if not running.forgotten:
                end_ids = () if request.ignore_eos else self._engine.tokenizer.eos_ids
                ids = without_end(reply.token_ids, end_ids)
                self._prompts.remember(cache_scope, prompt, reply.text, ids)
            watcher.cancel()
            self._flights.stop(handle)

    def _look(
        self, request: ChatCompletionRequest, prompt: EncodedDialogue, scope: CacheScope
    ) -> tuple[dict[str, Any] | None, PromptMarks]:
        miss, hints = self._cache.look(prompt, scope)
        report = self._cache.report(prompt, miss) if request.explain_cache else None
        return report, self._marks(prompt, hints)

    def _marks(self, prompt: EncodedDialogue, hints: MissHints) -> PromptMarks:
        if not self._has_windows:  # the places matter only to windows of local KV
            return PromptMarks(hints=hints)
        persona_end = prompt.persona_end
        return PromptMarks(
            turns=prompt.turn_boundaries or (),
            shared=() if persona_end is None else (persona_end,),
            hints=hints,
        )

    async def _whole(self, reply: _Reply, mailbox: Mailbox, send: Send, clock: RequestClock) -> str:
        while True:
            events = await mailbox.take()
            if not events:
                return "disconnect"
            for event, at_s in events:
                clock.token(event, at_s)
                reply.add(event)
            last = events[-1][0]
            if last.finish_reason is not None:
                break
        _raise_failure(last)
        completion = chat_completion(
            _completion_id(),
            int(time.time()),
            self._engine.model_name,
            reply.text,
            last.finish_reason,
            _usage(last),
            reply.cache_report,
        )
        await send_json(send, completion)
        return last.finish_reason

    async def _stream(
        self,
        request: ChatCompletionRequest,
        reply: _Reply,
        mailbox: Mailbox,
        send: Send,
        clock: RequestClock,
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
                reply.add(event)
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
                chunk += encoder.finish(reason, _usage(last), reply.cache_report)
            except DuologueError as error:
                chunk += error_event(error_response(error).body())
            await send({"type": "http.response.body", "body": chunk})
            return reason


class _Reply:
    """What has been generated so far."""

    def __init__(self, cache_report: Mapping[str, Any] | None) -> None:
        self.cache_report = cache_report
        self._texts: list[str] = []
        self.token_ids: list[int] = []

    def add(self, event: TokenEvent) -> None:
        self._texts.append(event.text)
        self.token_ids.extend(event.token_ids)

    @property
    def text(self) -> str:
        return "".join(self._texts)


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
