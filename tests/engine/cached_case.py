"""Scheduler, cache and runner without a thread, and the logits of every sampled token beside those of a run without a cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from duologue.cache.geometry import KvGeometry
from duologue.cache.kv_cache import KvCache
from duologue.cache.scope import DEFAULT_SCOPE, CacheScope
from duologue.engine.chunk import Chunk
from duologue.engine.request import NO_MARKS, PromptMarks, Request
from duologue.engine.runner import Runner
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.scheduler import SchedulerConfig
from duologue.engine.worker import Worker
from duologue.kernels import PAGE_TOKENS
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights
from duologue.models.spec import ModelSpec

Floats = npt.NDArray[np.float32]

GQA = random_spec(layers=4, heads=4, kv_heads=2, head_dim=16, vocab=64, hidden=64)
# One layer in two has a window, which divides neither the page nor the chunks; the last two layers read the KV of earlier ones.
MQA_WINDOWS = random_spec(
    layers=4,
    heads=4,
    kv_heads=1,
    head_dim=16,
    vocab=64,
    hidden=64,
    windows=(0, 90, 0, 90),
    kv_owners=(None, None, 0, None),
)
# Windows of two sizes in the same local pages: less than a page, and two pages.
TWO_WINDOWS = random_spec(
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=64,
    hidden=64,
    windows=(40, 0, 128, 40),
    kv_owners=(None, None, None, 0),
)


def packed(spec: ModelSpec, seed: int = 3) -> PackedModel:
    """A random model of this shape, without a tokenizer."""
    return PackedModel("random", spec, pack_model(spec, random_weights(spec, seed)), b"")


class FreshRunner:
    """Logits of token ids computed in one go, on KV that nobody else has touched."""

    def __init__(self, model: PackedModel, tokens: int = 1024) -> None:
        self._pages = -(-tokens // PAGE_TOKENS)
        local = self._pages if model.native().local_page_bytes else 0
        self._runner = Runner(
            model.native(),
            vocab_size=model.spec.vocab_size,
            page_count=self._pages,
            local_page_count=local,
            threads=1,
        )

    def logits(self, ids: npt.NDArray[np.int32]) -> Floats:
        """[len(ids), vocab]"""
        request = _request(0, ids.tolist(), 1)
        request.tables = _AllPages()
        for pool in self._runner.kv_pools:
            pool[:] = 0xFF
        _, logits = self._runner.step([Chunk(request, len(ids), samples=False)], every_logit=True)
        rows: Floats = logits.copy()
        return rows


class _AllPages:
    def copy_table(self, kind: int, out: npt.NDArray[np.int32]) -> None:
        out[:] = np.arange(len(out))


class CachedCase:
    """Requests over one small cache, stepped by hand."""

    def __init__(
        self,
        model: PackedModel,
        *,
        global_pages: int,
        local_pages: int = 0,
        max_batch_tokens: int = 96,
        threads: int = 1,
    ) -> None:
        self.model = model
        native = model.native()
        window = max(layer.window for layer in model.spec.layers)
        geometry = KvGeometry(
            PAGE_TOKENS,
            global_pages,
            native.global_page_bytes,
            local_pages if window else 0,
            native.local_page_bytes,
            window,
        )
        self.geometry = geometry
        self.runner = Runner(
            native,
            vocab_size=model.spec.vocab_size,
            page_count=global_pages,
            local_page_count=geometry.local_pages,
            threads=threads,
        )
        for pool in self.runner.kv_pools:
            pool[:] = 0xFF  # codes of -1 and scales that are NaN
        self.now_s = 0.0
        self.cache = KvCache(geometry, copy_page=self.runner.copy_page, clock=self._clock)
        config = SchedulerConfig(max_batch_tokens, min(8, max_batch_tokens), max(1, max_batch_tokens // 3))
        self.finished: list[Request] = []
        self.worker = Worker(self.runner, self.cache, config, self.finished.append)
        self._step = self.runner.step
        self.runner.step = self._recording_step  # type: ignore[method-assign]
        self._rows: dict[int, list[tuple[int, Floats]]] = {}
        self._numbers = 0
        self.record = True

    def _clock(self) -> float:
        self.now_s += 1.0
        return self.now_s

    def _recording_step(self, chunks: Sequence[Chunk], **options: Any) -> Any:
        sampled, logits = self._step(chunks, **options)
        if not self.record:
            return sampled, logits
        row = 0
        for chunk in chunks:
            if not chunk.samples:
                continue
            rows = self._rows.setdefault(chunk.request.number, [])
            for at in range(1 + len(chunk.drafts)):
                rows.append((chunk.request.total_tokens - 1 + at, logits[row + at].copy()))
                if at < len(chunk.drafts) and sampled[row + at] != chunk.drafts[at]:
                    break
            row += 1 + len(chunk.drafts)
        return sampled, logits

    def submit(
        self,
        ids: Sequence[int],
        reply_tokens: int,
        *,
        scope: CacheScope = DEFAULT_SCOPE,
        marks: PromptMarks = NO_MARKS,
        seed: int = 0,
    ) -> Request:
        request = _request(self._numbers, ids, reply_tokens, seed, scope, marks)
        self._numbers += 1
        self.worker.scheduler.add(request)
        return request

    def step(self) -> None:
        self.worker.step()
        self.worker.scheduler.check_integrity()

    def drain(self) -> None:
        for _ in range(5000):
            if not self.worker.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the requests do not end")

    def run(self, ids: Sequence[int], reply_tokens: int = 2, **options: Any) -> Request:
        request = self.submit(ids, reply_tokens, **options)
        self.drain()
        return request

    def assert_exact(self, request: Request, fresh: FreshRunner) -> None:
        """Every logit that chose a token of the request equals that of a run without a cache."""
        expected = fresh.logits(request.tokens)
        for position, row in self._rows.get(request.number, []):
            np.testing.assert_array_equal(row, expected[position], err_msg=f"position {position}")

    def is_exact(self, request: Request, fresh: FreshRunner) -> bool:
        try:
            self.assert_exact(request, fresh)
        except AssertionError:
            return False
        return True


def _request(
    number: int,
    ids: Sequence[int],
    reply_tokens: int,
    seed: int = 0,
    scope: CacheScope = DEFAULT_SCOPE,
    marks: PromptMarks = NO_MARKS,
) -> Request:
    return Request(
        number,
        ids,
        dataclasses.replace(SamplingParams(temperature=1.0), ignore_eos=True),
        seed=seed,
        max_total_tokens=len(ids) + reply_tokens,
        on_event=lambda event: None,
        detokenizer=None,
        stop_matcher=None,
        scope=scope,
        marks=marks,
    )
