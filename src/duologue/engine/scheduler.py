"""Decides what each forward step computes: continuous batching with chunked prefill and preemption.

The policy, in the order it is applied:
1. Every running request whose prompt is computed decodes one token. Requests are served in order of arrival.
2. What is left of the step's token budget goes to prompts. While something decodes, prompts get at most
   `prefill_tokens_while_decoding`, so that streams do not stall. Short ones (what is missing of them is at most
   `shared_prefill_tokens`) go first, oldest first, as long as together they have no more than that: a turn whose history is
   cached does not wait for a long newcomer. The rest of the step goes to the oldest long prompt, cut into chunks: it always
   gets some, so it cannot starve. After a step with prompts come one or two without, when three or six streams decode: what
   spares one newcomer the wait would stall all of them. More short ones than that in a step would make the first wait for the
   last, and a step is hardly faster per token from there on.
3. A waiting request is admitted on what the cache holds of its prompt, when the pages that can be had (free ones and those that
   eviction would give) hold the rest and one token more; later ones do not overtake it. One whose prompt another is about
   to compute waits for that instead, and lets others pass.
4. When a running request needs a page and none can be had, the youngest running request gives its pages up and waits. What it
   computed stays in the cache until others need the room, and recomputing gives the same KV, so its stream goes on as if
   nothing had happened.
The oldest running request is therefore never preempted by others and always finishes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from duologue.cache.kv_cache import GLOBAL, LOCAL, CachedSequence, KvCache
from duologue.engine.chunk import Chunk
from duologue.engine.request import Request, RequestState
from duologue.engine.speculation import MOST_DRAFT_TOKENS, Speculation

# A newcomer waits for another's prefill when that spares it more than so many tokens: a step's delay has its price too.
_WORTH_WAITING_TOKENS = 32
# Decode steps between two steps with prompts: one for so many streams that would stall, up to a limit.
_STREAMS_PER_DECODE_STEP = 3
_MOST_DECODE_STEPS = 2
# How many waiting requests a step looks at, and how many prompts of each kind it starts at most before they are served.
_LOOK_AHEAD = 64
_LONG_PROMPTS = 4
_SHORT_PROMPTS = 16


@dataclass(frozen=True)
class SchedulerConfig:
    """`max_batch_tokens` per step, `max_num_seqs` running at once; `speculation_tokens` is the most that a request drafts in a
    step, 0 to draft none (`speculation`); the others as the module says.

    Raises ValueError naming a field out of range.
    """

    max_batch_tokens: int = 512
    max_num_seqs: int = 64
    prefill_tokens_while_decoding: int = 128
    shared_prefill_tokens: int = 64
    speculation_tokens: int = 8

    def __post_init__(self) -> None:
        for name in (
            "max_batch_tokens",
            "max_num_seqs",
            "prefill_tokens_while_decoding",
            "shared_prefill_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.speculation_tokens <= MOST_DRAFT_TOKENS:
            raise ValueError(
                f"speculation_tokens must be from 0 (off) to {MOST_DRAFT_TOKENS}, not {self.speculation_tokens}"
            )
        if self.max_num_seqs > self.max_batch_tokens:
            raise ValueError(
                f"max_num_seqs {self.max_num_seqs} must not exceed max_batch_tokens {self.max_batch_tokens}"
            )


class Scheduler:
    """Holds the waiting and running requests and the pages they use. Not thread-safe: the engine's thread owns it."""

    def __init__(self, config: SchedulerConfig, cache: KvCache) -> None:
        self.config = config
        self.cache = cache
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival
        self._decode_steps_due = 0
        self.admitted: list[Request] = []  # for the first time, since the engine last looked
        self.preemptions_total = 0
        self.speculation = Speculation(cache, config.speculation_tokens)

    @property
    def has_work(self) -> bool:
        """Whether a step would compute anything."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a new request behind the others."""
        self.waiting.append(request)

    def requests(self) -> Iterable[Request]:
        """Every request that has not finished."""
        yield from self.running
        yield from self.waiting

    def plan(self) -> list[Chunk]:
        """The chunks of the next step, their pages allocated. Empty only when there is no work.

        Running requests may be preempted on the way.
        """
        chunks: list[Chunk] = []
        budget = self.config.max_batch_tokens
        preemptions_before = self.preemptions_total
        for request in list(self.running):
            if request.state is RequestState.RUNNING and request.missing_tokens == 1:
                if not self._ensure_pages(request, request.total_tokens):
                    continue
                chunks.append(Chunk(request, 1, samples=True))
                budget -= 1
        # A request may have lost its pages to an older one after it was given a chunk.
        chunks = [chunk for chunk in chunks if chunk.request.state is RequestState.RUNNING]
        if chunks:
            budget = min(budget, self.config.prefill_tokens_while_decoding)
            if self._decode_steps_due > 0:
                self._decode_steps_due -= 1
                return self._with_drafts(chunks)
        streams = len(chunks)
        # After a preemption pages are short, and what was just evicted must not come back within the same step.
        if self.preemptions_total == preemptions_before:
            self._admit_waiting(chunks)
        self._serve_prompts(budget, chunks)
        if len(chunks) > streams:
            self._decode_steps_due = min(streams // _STREAMS_PER_DECODE_STEP, _MOST_DECODE_STEPS)
        return self._with_drafts([chunk for chunk in chunks if chunk.request.state is RequestState.RUNNING])

    def _with_drafts(self, chunks: list[Chunk]) -> list[Chunk]:
        return self.speculation.with_drafts(chunks, self.config.max_batch_tokens, self._promised_pages)

    def computed(self, chunk: Chunk, accepted: int = 0) -> None:
        """Take note that a chunk's step has been done, and that so many of its drafts are part of the reply: pages that are
        full enter the cache, and the prompt's end does."""
        request, page_tokens = chunk.request, self.cache.geometry.page_tokens
        before = request.computed
        request.computed += chunk.count + accepted
        seal = not request.sealed and request.computed >= request.prompt_tokens
        if seal or request.computed // page_tokens > before // page_tokens:
            assert request.sequence is not None
            request.sequence.commit(request.tokens, request.computed, seal=seal)
            request.sealed |= seal

    def finish(self, request: Request, *, keep: bool = True) -> None:
        """Take a request out; with `keep` what it computed stays in the cache. One that has finished is left alone."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        elif request.state is RequestState.WAITING:
            self.waiting.remove(request)
        self._close(request, keep=keep)
        request.state = RequestState.FINISHED

    def check_integrity(self) -> None:
        """Raise an error when pages and requests disagree."""
        self.cache.check_integrity()
        holding = sum(request.sequence is not None for request in self.requests())
        sequences = self.cache.stats().sequences
        assert holding == sequences, f"{sequences} sequences are open for {holding} requests"
        assert all(request.sequence is None for request in self.waiting), "a waiting request holds pages"

    def _prompts(self, streams: list[Chunk]) -> list[Request]:
        """Running requests that do not decode in this step, oldest first. One token may be all that is missing of a cached one."""
        decoding = {chunk.request.number for chunk in streams}
        return [request for request in self.running if request.number not in decoding]

    def _serve_prompts(self, budget: int, chunks: list[Chunk]) -> None:
        """Gives the step's tokens to short prompts that fit in together, and what is left to the oldest of the others."""
        room = min(budget, self.config.shared_prefill_tokens)
        together = False
        other: Request | None = None
        for request in self._prompts(chunks):
            missing = request.missing_tokens
            if missing <= room:
                room -= missing
                budget -= missing
                together = True
                self._prefill(request, missing, chunks)
            elif missing > self.config.shared_prefill_tokens:
                other = other or request
            else:
                room = 0  # later short ones do not overtake it
                if not together:  # it alone is more than the step's budget
                    other = other or request
        if other is not None and budget > 0:
            self._prefill(other, budget, chunks)

    def _prefill(self, request: Request, budget: int, chunks: list[Chunk]) -> None:
        # An earlier prompt of the step may have taken its pages.
        if request.state is not RequestState.RUNNING:
            return
        missing = request.missing_tokens
        count = min(budget, missing)
        if self._ensure_pages(request, request.computed + count):
            chunks.append(Chunk(request, count, samples=count == missing))

    def _admit_waiting(self, streams: list[Chunk]) -> None:
        """Starts waiting requests, oldest first."""
        for request in list(itertools.islice(self.waiting, _LOOK_AHEAD)):
            prompts = self._prompts(streams)
            long = sum(prompt.missing_tokens > self.config.shared_prefill_tokens for prompt in prompts)
            # Pages for more prompts than the next steps serve are better left to what is stored.
            if long >= _LONG_PROMPTS or len(prompts) - long >= _SHORT_PROMPTS:
                return
            if len(self.running) >= self.config.max_num_seqs:
                return
            if not self._is_being_computed(request) and not self._admit(request):
                return

    def _is_being_computed(self, request: Request) -> bool:
        """Whether a running prompt will soon have computed much that this one has in common with it."""
        ids = request.tokens
        for other in self.running:
            if other.missing_tokens <= 1 or other.scope.salt != request.scope.salt:
                continue
            count = min(len(ids) - 1, other.total_tokens)
            differs = ids[:count] != other.tokens[:count]
            common = int(np.argmax(differs)) if differs.any() else count
            if common - other.computed <= 0 or common <= _WORTH_WAITING_TOKENS:
                continue
            stored = self.cache.lookup(ids[:-1], request.scope.salt).matched_tokens
            if common - stored > _WORTH_WAITING_TOKENS:
                return True
        return False

    def _admit(self, request: Request) -> bool:
        """Start a waiting request on what the cache holds of it; False when the rest finds no room."""
        sequence = self.cache.open(
            request.tokens,
            request.scope,
            turns=request.marks.turns,
            shared=request.marks.shared,
            keep=request.keep,
        )
        needed_global, needed_local = self._missing_pages(
            sequence, sequence.cached_tokens, request.total_tokens + 1
        )
        promised_global, promised_local = self._promised_pages()
        if needed_global + promised_global > self.cache.available(
            GLOBAL
        ) or needed_local + promised_local > self.cache.available(LOCAL):
            sequence.close(request.tokens, sequence.cached_tokens, keep=False)
            return False
        self.cache.copy_pages(sequence)
        request.sequence = request.tables = sequence
        request.computed = sequence.cached_tokens
        if request.cached_tokens is None:
            request.cached_tokens = sequence.cached_tokens
            request.first_lookup = sequence.lookup
            self.admitted.append(request)
        self.waiting.remove(request)
        self._insert_running(request)
        return True

    def _missing_pages(self, sequence: CachedSequence, computed: int, tokens: int) -> tuple[int, int]:
        geometry = self.cache.geometry
        held = sequence.page_count
        missing = max(0, geometry.pages_for(tokens) - held)
        # Of what it holds already, the pages of its window are local ones; they make room as it goes on.
        most_local = geometry.local_pages_for(tokens, self.config.max_batch_tokens)
        held_local = held - max(0, computed - geometry.window_tokens + 1) // geometry.page_tokens
        return missing, max(0, min(missing, most_local - held_local))

    def _promised_pages(self) -> tuple[int, int]:
        """Pages that running prompts still need before their first token: not free to a newcomer."""
        promised_global = promised_local = 0
        for request in self.running:
            assert request.sequence is not None
            missing = self._missing_pages(request.sequence, request.computed, request.total_tokens + 1)
            promised_global += missing[0]
            promised_local += missing[1]
        return promised_global, promised_local

    def _insert_running(self, request: Request) -> None:
        request.state = RequestState.RUNNING
        at = len(self.running)
        while at and self.running[at - 1].number > request.number:
            at -= 1
        self.running.insert(at, request)

    def _ensure_pages(self, request: Request, tokens: int) -> bool:
        """Allocate what `tokens` positions need; False when the request itself was preempted for lack of pages."""
        assert request.sequence is not None
        while not request.sequence.reserve(tokens):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._close(request, keep=True)
        request.state = RequestState.WAITING
        self.waiting.appendleft(request)
        self.preemptions_total += 1

    def _close(self, request: Request, *, keep: bool) -> None:
        if request.sequence is not None:
            found = request.sequence.close(request.tokens, request.computed, keep=keep and request.keep)
            request.keep = request.keep and found  # one that was forgotten may only have lost its pages
        request.sequence = request.tables = None
        request.computed = 0
        request.sealed = False
