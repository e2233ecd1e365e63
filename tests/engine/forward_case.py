"""Drives a runner by hand: logits of every token of a prompt, computed in any chunks, among any others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from duologue.engine.chunk import Chunk
from duologue.engine.request import FixedPages, Request
from duologue.engine.runner import Runner
from duologue.engine.sampling_params import SamplingParams
from duologue.kernels import PAGE_TOKENS
from duologue.models.packed_model import PackedModel

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


def pages_of(request: Request) -> Ids:
    """The pages that a request of a ForwardCase was given."""
    assert isinstance(request.tables, FixedPages)
    return request.tables.pages


class ForwardCase:
    """A runner whose pages are handed out in a shuffled order, beginning as garbage."""

    def __init__(self, model: PackedModel, *, threads: int, isa: str = "", pages: int = 96) -> None:
        self.vocab_size = model.spec.vocab_size
        self.runner = Runner(
            model.native(),
            vocab_size=self.vocab_size,
            page_count=pages,
            local_page_count=pages,
            threads=threads,
            isa=isa,
        )
        for pool in self.runner.kv_pools:
            pool[:] = 0xFF  # codes of -1 and scales that are NaN
        self._free = np.random.default_rng(11).permutation(pages).tolist()

    def request(self, ids: Ids) -> Request:
        """A request with all its pages."""
        pages = -(-len(ids) // PAGE_TOKENS)
        request = Request(
            0,
            ids.tolist(),
            SamplingParams(),
            seed=0,
            max_total_tokens=len(ids) + 1,
            on_event=lambda event: None,
            detokenizer=None,
            stop_matcher=None,
        )
        request.tables = FixedPages(np.array([self._free.pop() for _ in range(pages)], dtype=np.int32))
        return request

    def release(self, request: Request) -> None:
        """Give the pages back."""
        self._free += pages_of(request).tolist()

    def step(self, work: Sequence[tuple[Request, int]]) -> list[Logits]:
        """Advance every request by its count; the logits [count, vocab] of each."""
        chunks = [Chunk(request, count, samples=False) for request, count in work]
        _, logits = self.runner.step(chunks, every_logit=True)
        rows = np.split(logits.copy(), np.cumsum([count for _, count in work])[:-1])
        for request, count in work:
            request.computed += count
        return rows

    def run(self, ids: Ids, chunk: int) -> Logits:
        """Logits [n, vocab] of one prompt alone, in chunks of one size."""
        request = self.request(ids)
        rows = []
        while request.computed < len(ids):
            rows += self.step([(request, min(chunk, len(ids) - request.computed))])
        self.release(request)
        return np.concatenate(rows)
