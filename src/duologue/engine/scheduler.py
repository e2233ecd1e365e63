"""Decides what each forward step computes: continuous batching with chunked prefill and preemption.

The policy, in the order it is applied:
1. Every running request whose prompt is computed decodes one token. Requests are served in order of arrival.
2. What is left of the step's token budget goes to prompts, oldest first, cut into chunks; several prompts may share a step.
   While something decodes, prompts get at most `prefill_tokens_while_decoding`, so that streams do not stall.
3. A waiting request is admitted when the free pages hold all of its tokens and one more; later ones do not overtake it.
4. When a running request needs a page and none is free, the youngest running request gives its pages up and waits to be
   recomputed. Its tokens are kept, and recomputing gives the same KV, so its stream goes on as if nothing had happened.
The oldest running request is therefore never preempted by others and always finishes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from duologue.cache.page_pool import PagePool
from duologue.engine.request import Request, RequestState
from duologue.kernels import PAGE_TOKENS


@dataclass(frozen=True)
class SchedulerConfig:
    """`max_batch_tokens` per step; `max_num_seqs` running at once. Raises ValueError naming a field out of range."""

    max_batch_tokens: int = 512
    max_num_seqs: int = 64
    prefill_tokens_while_decoding: int = 128

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_num_seqs", "prefill_tokens_while_decoding"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_num_seqs > self.max_batch_tokens:
            raise ValueError(
                f"max_num_seqs {self.max_num_seqs} must not exceed max_batch_tokens {self.max_batch_tokens}"
            )


@dataclass(frozen=True)
class Chunk:
    """Tokens [computed, computed + count) of one request in the next step; `samples` when the last of them is its newest."""

    request: Request
    count: int
    samples: bool


class Scheduler:
    """Holds the waiting and running requests and the pages they use. Not thread-safe: the engine's thread owns it."""

    def __init__(self, config: SchedulerConfig, pool: PagePool) -> None:
        self.config = config
        self.pool = pool
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival
        self.preemptions_total = 0

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
            if request.state is RequestState.RUNNING and request.total_tokens - request.computed == 1:
                if not self._ensure_pages(request, request.total_tokens):
                    continue
                chunks.append(Chunk(request, 1, samples=True))
                budget -= 1
        # A request may have lost its pages to an older one after it was given a chunk.
        chunks = [chunk for chunk in chunks if chunk.request.state is RequestState.RUNNING]
        if chunks:
            budget = min(budget, self.config.prefill_tokens_while_decoding)
        for request in list(self.running):
            if budget < 1:
                break
            if request.state is RequestState.RUNNING and request.total_tokens - request.computed > 1:
                budget -= self._prefill(request, budget, chunks)
        # After a preemption pages are short, and what was just evicted must not come back within the same step.
        may_admit = self.preemptions_total == preemptions_before
        while may_admit and budget > 0 and self.waiting and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            if self._pages_for(request.total_tokens + 1) > self.pool.free_count - self._promised_pages():
                break
            self.waiting.popleft()
            self._insert_running(request)
            budget -= self._prefill(request, budget, chunks)
        return [chunk for chunk in chunks if chunk.request.state is RequestState.RUNNING]

    def finish(self, request: Request) -> None:
        """Take a request out and free its pages. A request that has finished already is left alone."""
        if request.state is RequestState.RUNNING:
            self.running.remove(request)
        elif request.state is RequestState.WAITING:
            self.waiting.remove(request)
        self._release_pages(request)
        request.state = RequestState.FINISHED

    def check_integrity(self) -> None:
        """Raise AssertionError when pages and requests disagree."""
        self.pool.check_integrity()
        held = sum(request.page_count for request in self.requests())
        used = self.pool.page_count - self.pool.free_count
        assert held == used, f"{used} pages are in use but requests hold {held}"
        assert all(request.page_count == 0 for request in self.waiting), "a waiting request holds pages"

    def _prefill(self, request: Request, budget: int, chunks: list[Chunk]) -> int:
        count = min(budget, request.total_tokens - request.computed)
        if not self._ensure_pages(request, request.computed + count):
            return 0
        chunks.append(Chunk(request, count, samples=request.computed + count == request.total_tokens))
        return count

    def _promised_pages(self) -> int:
        """Pages that running prompts still need before their first token: not free to a newcomer."""
        return sum(
            max(0, self._pages_for(request.total_tokens + 1) - request.page_count) for request in self.running
        )

    def _insert_running(self, request: Request) -> None:
        request.state = RequestState.RUNNING
        at = len(self.running)
        while at and self.running[at - 1].number > request.number:
            at -= 1
        self.running.insert(at, request)

    def _ensure_pages(self, request: Request, tokens: int) -> bool:
        """Allocate what `tokens` positions need; False when the request itself was preempted for lack of pages."""
        needed = self._pages_for(tokens)
        while request.page_count < needed:
            if not self.pool.free_count:
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest is request:
                    return False
                continue
            request.pages[request.page_count] = self.pool.allocate()
            request.page_count += 1
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release_pages(request)
        request.computed = 0
        request.state = RequestState.WAITING
        self.waiting.appendleft(request)
        self.preemptions_total += 1

    def _release_pages(self, request: Request) -> None:
        for page in request.pages[: request.page_count]:
            self.pool.release(int(page))
        request.page_count = 0

    @staticmethod
    def _pages_for(tokens: int) -> int:
        return -(-tokens // PAGE_TOKENS)
