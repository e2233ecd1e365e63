"""The engine's thread at work: one step after the other, and what becomes of the sampled tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from duologue.cache.kv_cache import KvCache
from duologue.cache.miss import MissCause, cause_of
from duologue.engine.chunk import Chunk
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
        self.drafted_tokens_total = 0
        self.accepted_tokens_total = 0
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
        forward_s = self.runner.forward_s_total
        sampled, _ = self.runner.step(chunks)
        self.steps_total += 1
        self.scheduler.speculation.observe(chunks, self.runner.forward_s_total - forward_s)
        row = 0
        for chunk in chunks:
            self.computed_tokens_total += chunk.count
            if not chunk.samples:
                self.scheduler.computed(chunk)
                continue
            rows = range(row, row + 1 + len(chunk.drafts))
            row = rows.stop
            dead = [at for at in self.runner.sampling.dead_rows if at in rows and at > rows.start]
            if dead:  # that a grammar has no way on is said where it is the reply that has come there
                rows = range(rows.start, min(dead))
                chunk = replace(chunk, drafts=chunk.drafts[: len(rows) - 1])
            self._accept(
                chunk,
                sampled[rows.start : rows.stop].tolist(),
                [self.runner.sampling.logprob(r) for r in rows],
            )
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
        logprobs: Sequence[TokenLogprob | None] = (),
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
            _emit(request, text, token_ids, reason, error, logprobs)
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

    def _accept(self, chunk: Chunk, sampled: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> None:
        """Add what was sampled after a request's newest token, and after its drafts as far as they were right, and say so."""
        request, drafts = chunk.request, chunk.drafts
        text, flush, count = "", True, 0
        reason: FinishReason | None = None
        error: str | None = None
        for token, draft in zip(sampled, (*drafts, None), strict=True):
            error = request.grammar.accept(token) if request.grammar else None
            if error is not None:
                reason, flush = "error", False
                break
            count += 1
            more, reason, flush = self._append(request, token)
            text += more
            # What was sampled after a wrong draft, or after the end, is of no reply.
            if reason is not None or token != draft:
                break
        accepted = max(0, count - 1)
        self.completion_tokens_total += count
        self.computed_tokens_total += accepted
        self.drafted_tokens_total += len(drafts)
        self.accepted_tokens_total += accepted
        # The newest token is not computed, whether a draft foresaw it or not: a reply leaves the same KV either way.
        self.scheduler.computed(chunk, accepted)
        token_ids, of_tokens = tuple(sampled[:count]), tuple(logprobs[:count])
        if reason is not None:
            self.finish(request, reason, token_ids, text, flush=flush, error=error, logprobs=of_tokens)
            return
        self.scheduler.speculation.learn(chunk, accepted)
        _emit(request, text, token_ids, None, None, of_tokens)

    def _append(self, request: Request, token: int) -> tuple[str, FinishReason | None, bool]:
        """Add one sampled token. Returns the text that it completes, whether and why the reply ends with it, and whether text that
        is held back is still to come then."""
        request.append(token)
        if token in request.end_ids:
            return "", "stop", True
        text = request.detokenizer.push(token) if request.detokenizer else ""
        # Below `min_tokens` text passes the matcher by: a stop string is looked for in what comes after.
        if (
            request.stop_matcher is not None
            and text
            and request.completion_tokens >= request.params.min_tokens
        ):
            text, matched = request.stop_matcher.push(text)
            if matched is not None:
                return text, "stop", False
        if request.total_tokens >= request.max_total_tokens:
            return text, "length", True
        return text, "stop" if request.grammar and request.grammar.ends_reply else None, True


def _emit(
    request: Request,
    text: str,
    token_ids: tuple[int, ...],
    reason: FinishReason | None,
    error: str | None,
    logprobs: Sequence[TokenLogprob | None],
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
            logprobs=tuple(logprob for logprob in logprobs if logprob is not None),
        )
    )
