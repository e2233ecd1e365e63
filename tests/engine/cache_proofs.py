"""Long runs over the inter-turn cache; the tests run a small part of them, scripts/prove_cache.py the whole."""

from __future__ import annotations

import gc
import os
from collections import deque

import numpy as np

from duologue.cache.scope import CacheScope
from duologue.engine.request import PromptMarks, Request
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec
from tests.engine.cached_case import CachedCase, FreshRunner, packed

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def prove_exact(model: PackedModel, schedules: int, *, seed: int = 0) -> str:
    """Random dialogues with edits, branches, regenerations, aborts and evictions beside each other; every logit that chose
    a token equals that of a run without a cache. Raises AssertionError at the first that does not."""
    fresh = FreshRunner(model, 512)
    requests = cached = prompt = logits = 0
    for schedule in range(schedules):
        rng = np.random.default_rng((seed, schedule))
        case = CachedCase(
            model,
            global_pages=int(rng.integers(6, 14)),
            local_pages=16,
            max_batch_tokens=int(rng.choice([33, 64, 128])),
            threads=2,
        )
        done: list[Request] = []
        for _ in range(int(rng.integers(4, 8))):
            ids = _next_prompt(rng, done, model.spec.vocab_size)
            request = case.submit(
                ids,
                int(rng.integers(1, 12)),
                scope=CacheScope(salt=b"s" if rng.random() < 0.1 else b""),
                marks=PromptMarks(turns=(max(1, len(ids) - 10),)),
                seed=schedule,
            )
            done.append(request)
            for _ in range(int(rng.integers(0, 12))):
                case.step()
            request.abort_requested = rng.random() < 0.15
        case.drain()
        for request in done:
            case.assert_exact(request, fresh)
            requests, prompt = requests + 1, prompt + request.prompt_tokens
            cached += request.cached_tokens or 0
            logits += request.completion_tokens
    return (
        f"{schedules} schedules, {requests} requests, {cached} of {prompt} prompt tokens from the cache, "
        f"{logits} rows of logits equal bit for bit"
    )


def _next_prompt(rng: np.random.Generator, done: list[Request], vocab: int) -> list[int]:
    message: list[int] = rng.integers(0, vocab, int(rng.integers(1, 60))).tolist()
    if not done or rng.random() < 0.2:
        return message
    ids: list[int] = done[int(rng.integers(len(done)))].tokens.tolist()
    if rng.random() < 0.2:
        return ids[:-1] or ids  # the same prompt again, or a reply continued
    cut = int(rng.integers(1, len(ids) + 1)) if rng.random() < 0.4 else len(ids)
    return (ids[:cut] + message)[:250]


def soak(requests: int) -> str:
    """Many requests over a small model and a small budget; raises AssertionError when memory grows once everything is warm."""
    spec = random_spec(layers=1, heads=2, kv_heads=1, head_dim=16, vocab=64, hidden=32, mlp=32)
    case = CachedCase(packed(spec), global_pages=300, max_batch_tokens=256)
    case.record = False
    rng = np.random.default_rng(1)
    dialogues: deque[list[int]] = deque()
    warm_bytes = 0
    cached = 0
    for i in range(requests):
        if len(dialogues) < 60 or rng.random() < 0.05:
            dialogues.append(rng.integers(0, 64, int(rng.integers(1, 40))).tolist())
        if len(dialogues) > 80:
            dialogues.popleft()
        at = int(rng.integers(len(dialogues)))
        ids = dialogues[at] + rng.integers(0, 64, int(rng.integers(1, 12))).tolist()
        scope = CacheScope(key=f"key {i % 5000}", salt=b"%d" % (i % 3))
        request = case.submit(ids[-400:], int(rng.integers(1, 4)), scope=scope)
        request.abort_requested = rng.random() < 0.02
        if rng.random() < 0.7:  # otherwise it runs beside the next
            while case.worker.scheduler.has_work:
                case.worker.step()
            cached += sum(done.cached_tokens or 0 for done in case.finished)
            case.finished.clear()
        if rng.random() < 0.01:
            case.cache.forget("", f"key {int(rng.integers(5000))}")
        dialogues[at] = request.tokens.tolist()[-400:]
        if i == requests // 5:
            gc.collect()
            warm_bytes = _resident_bytes()
    case.drain()
    case.cache.check_integrity()
    gc.collect()
    grown = _resident_bytes() - warm_bytes
    stats = case.cache.stats()
    # Garbage of the allocators comes and goes by a few MB; a leak of 64 bytes a request would be more after a million.
    assert grown < (16 << 20), f"memory grew by {grown} bytes over {requests} requests"
    assert stats.stored_pages[0] <= 300
    return (
        f"{requests} requests, {cached} prompt tokens from the cache, {stats.evicted_pages[0]} pages evicted, "
        f"index {stats.index_bytes} bytes, memory grew by {grown / 2**20:.1f} MiB after the first fifth"
    )


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES
