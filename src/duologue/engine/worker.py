"""The engine's thread at work: one step after the other, and what becomes of the sampled tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

from duologue.cache.kv_cache import KvCache
from duologue.cache.miss import MissCause, cause_of
from duologue.engine.events import FinishReason, TokenEvent, TokenLogprob
from duologue.engine.request import Request
from duologue.engine.runner import Runner
from duologue.engine.scheduler import Scheduler, SchedulerConfig


class Worker:
    """Scheduler, runner and the counters of their work. The engine's thread alone calls it; others read the counters.

    `on_finished` is told of each request that has ended.
    """

    def __init__(
        self,
        runner: Runner,
        cache: KvCache,
        config: SchedulerConfig,
        on_finished: Callable[[Request], None],
    ) -> None:
        self.runner = runner
        self.cache = cache
        self.scheduler = Scheduler(config, cache)
        self._on_finished = on_finished
        self.aborted_total = 0
        self.computed_tokens_total = 0
        self.completion_tokens_total = 0
        self.hit_tokens_total = 0
        self.miss_tokens_total = dict.fromkeys(MissCause, 0)
        self.steps_total = 0
        self.step_s_total = 0.0

    def step(self) -> None:
        """Plan and compute one step, and hand out its tokens. Raises what the forward step raises."""
        for request in [request for request in self.scheduler.requests() if request.abort_requested]:
            self.aborted_total += 1
            self.finish(request, "abort")
        started = time.perf_counter()
        chunks = self.scheduler.plan()
        self._count_hits()
        if not chunks:
            return
        sampled, _ = self.runner.step(chunks)
        self.steps_total += 1
        row = 0
        for chunk in chunks:
            self.computed_tokens_total += chunk.count
            self.scheduler.computed(chunk)
            if chunk.samples:
                self._accept(chunk.request, int(sampled[row]), self.runner.sampling.logprob(row))
                row += 1
        self.step_s_total += time.perf_counter() - started

    def finish(
        self,
        request: Request,
        reason: FinishReason,
        token_ids: tuple[int, ...] = (),
        text: str = "",
        *,
        flush: bool = True,
        error: str | None = None,
        logprob: TokenLogprob | None = None,
    ) -> None:
        """End a request. What it computed stays in the cache, unless it ended by an error."""
        if flush:
            # What was held back as the beginning of a character or of a stop string turns out to be neither.
            tail = request.detokenizer.flush() if request.detokenizer else ""
            if request.stop_matcher is not None:
                emitted, matched = request.stop_matcher.push(tail)
                text += emitted
                if matched is None:
                    text += request.stop_matcher.flush()
                elif reason == "length":
                    reason = "stop"
            else:
                text += tail
        self.scheduler.finish(request, keep=error is None)
        try:
            _emit(request, text, token_ids, reason, error, logprob)
        finally:
            self._on_finished(request)

    def _count_hits(self) -> None:
        for request in self.scheduler.admitted:
            assert request.cached_tokens is not None
            assert request.first_lookup is not None
            self.hit_tokens_total += request.cached_tokens
            cause = cause_of(request.first_lookup, request.marks.hints)
            self.miss_tokens_total[cause] += request.prompt_tokens - request.cached_tokens
        self.scheduler.admitted.clear()

    def _accept(self, request: Request, token: int, logprob: TokenLogprob | None) -> None:
        """Add a sampled token to a request and say so."""
        grammar = request.grammar
        problem = grammar.accept(token) if grammar else None
        if problem is not None:
            self.finish(request, "error", flush=False, error=problem)
            return
        request.append(token)
        self.completion_tokens_total += 1
        if token in request.end_ids:
            self.finish(request, "stop", (token,), logprob=logprob)
            return
        text = request.detokenizer.push(token) if request.detokenizer else ""
        # Below `min_tokens` text passes the matcher by: a stop string is looked for in what comes after.
        if (
            request.stop_matcher is not None
            and text
            and request.completion_tokens >= request.params.min_tokens
        ):
            text, matched = request.stop_matcher.push(text)
            if matched is not None:
                self.finish(request, "stop", (token,), text, flush=False, logprob=logprob)
                return
        if request.total_tokens >= request.max_total_tokens:
            self.finish(request, "length", (token,), text, logprob=logprob)
        elif grammar and grammar.ends_reply:
            self.finish(request, "stop", (token,), text, logprob=logprob)
        else:
            _emit(request, text, (token,), None, None, logprob)


def _emit(
    request: Request,
    text: str,
    token_ids: tuple[int, ...],
    reason: FinishReason | None,
    error: str | None,
    logprob: TokenLogprob | None,
) -> None:
    request.on_event(
        TokenEvent(
            text=text,
            token_ids=token_ids,
            finish_reason=reason,
            prompt_tokens=request.prompt_tokens,
            cached_tokens=request.cached_tokens or 0,
            completion_tokens=request.completion_tokens,
            error=error,
            logprobs=() if logprob is None else (logprob,),
        )
    )
