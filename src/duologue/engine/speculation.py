"""Which requests of a step are given drafts, and how many: as many as are likely to be worth their rows.

A draft is a guess at the tokens to come. The step computes drafts behind the request's newest token and samples after each; as long
as the sampled token is the drafted one, the next row's is what decoding alone would have sampled, bit for bit, because a row
depends on its tokens only and the noise on seed and position only. So drafts change when tokens come, and never which.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from duologue.cache.kv_cache import GLOBAL, LOCAL, KvCache
from duologue.engine.chunk import Chunk
from duologue.engine.drafter import Drafter, Ids
from duologue.engine.step_cost import StepCost

MOST_DRAFT_TOKENS = 32
"""Of one request, and of all requests of a step: each has a row of logits, which takes memory too."""
# A row must promise so much more than what the step's tokens cost on average: costs and chances are estimates.
_MARGIN = 1.25
# What a step may grow by while it serves anybody who gains nothing by it.
_NEIGHBOURS_GROWTH = 1.2
_SURE = 0.98

PagesOfBothKinds = tuple[int, int]


@dataclass(frozen=True)
class _Stream:
    """A request that decodes in the step: where its chunk stands, and how many tokens its reply has room for beyond the next."""

    at: int
    drafter: Drafter
    most: int


class Speculation:
    """Chooses the drafts of each step, at most `most_tokens` of a request. The engine's thread alone uses it."""

    def __init__(self, cache: KvCache, most_tokens: int) -> None:
        self.cost = StepCost()
        self._cache = cache
        self._most_tokens = most_tokens

    def observe(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """A step has taken so long."""
        if all(chunk.count == 1 for chunk in chunks):
            self.cost.observe(sum(chunk.rows for chunk in chunks), seconds)

    def learn(self, chunk: Chunk, accepted: int) -> None:
        """Of a chunk's drafts the first `accepted` were right."""
        if chunk.request.drafter is not None:
            chunk.request.drafter.learn(len(chunk.drafts), accepted)

    def with_drafts(
        self, chunks: list[Chunk], step_tokens: int, promised: Callable[[], PagesOfBothKinds]
    ) -> list[Chunk]:
        """`chunks` with the drafts that are worth it, in a step of at most `step_tokens`, and pages for them.

        No request loses a page by a draft: it takes none that are `promised` to running prompts.
        """
        if not self._most_tokens:
            return chunks
        rows = sum(chunk.count for chunk in chunks)
        left = min(step_tokens - rows, MOST_DRAFT_TOKENS)
        streams = []
        for at, chunk in enumerate(chunks):
            request = chunk.request
            # Sealed: the prompt's end has been noted in the cache, and what is missing is the newest token.
            if request.drafter is not None and request.sealed and chunk.samples:
                most = min(self._most_tokens, request.max_total_tokens - request.total_tokens - 1)
                if most > 0:
                    streams.append(_Stream(at, request.drafter, most))
        if not streams or left < 1:
            return chunks
        drafted = list(chunks)
        for stream, ids in zip(streams, self.choose(chunks, streams, rows), strict=True):
            draft = _possible(chunks[stream.at], tuple(ids[:left].tolist()))
            draft = draft[: self._room(chunks[stream.at], len(draft), promised)]
            if draft:
                left -= len(draft)
                drafted[stream.at] = replace(chunks[stream.at], drafts=draft)
        return drafted

    def choose(self, chunks: Sequence[Chunk], streams: Sequence[_Stream], rows: int) -> list[Ids]:
        """Drafts for each stream of a step that has `rows` without them.

        Rows are given where they are likeliest to be right, as long as one more brings more tokens for its time than the step does.
        """
        drafts = [chunks[stream.at].request.tokens[:0] for stream in streams]
        tokens, row_s, plain_s = float(rows), self.cost.row_s, self.cost.step_s(rows)
        step_s = plain_s
        if not self.cost.known or _SURE * step_s <= _MARGIN * row_s * tokens:
            return drafts
        proposals: list[tuple[Ids, list[float]]] = []
        candidates: list[tuple[float, int, int]] = []
        for index, stream in enumerate(streams):
            proposal = stream.drafter.propose(chunks[stream.at].request.tokens, stream.most)
            proposals.append(proposal)
            if proposal[1] and proposal[1][0] * step_s > _MARGIN * row_s * tokens:
                candidates.append((-proposal[1][0], index, 0))
        most_s = plain_s * _NEIGHBOURS_GROWTH if len(candidates) < rows else float("inf")
        heapq.heapify(candidates)
        while candidates:
            minus_chance, index, at = heapq.heappop(candidates)
            if -minus_chance * step_s <= _MARGIN * row_s * tokens or step_s + row_s > most_s:
                break
            tokens -= minus_chance
            step_s += row_s
            follow, chances = proposals[index]
            drafts[index] = follow[: at + 1]
            if at + 1 < len(chances):
                heapq.heappush(candidates, (-chances[at + 1], index, at + 1))
        return drafts

    def _room(self, chunk: Chunk, wanted: int, promised: Callable[[], PagesOfBothKinds]) -> int:
        """For how many drafts the request has pages, or can have one more without harm."""
        request, cache = chunk.request, self._cache
        assert request.sequence is not None
        room = request.sequence.page_count * cache.geometry.page_tokens - request.total_tokens
        if wanted <= room:
            return wanted
        promised_global, promised_local = promised()
        spare = cache.available(GLOBAL) > promised_global
        if cache.geometry.local_pages:
            spare = spare and cache.available(LOCAL) > promised_local
        if spare and request.sequence.reserve(request.total_tokens + wanted):
            return wanted
        return room


def _possible(chunk: Chunk, draft: tuple[int, ...]) -> tuple[int, ...]:
    """A draft up to where the reply would end, and as far as its grammar takes it."""
    request = chunk.request
    ends = [at for at, token in enumerate(draft) if token in request.end_ids]
    if ends:
        draft = draft[: ends[0]]
    if draft and request.grammar is not None:
        draft = draft[: request.grammar.allowed(draft)]
    return draft
