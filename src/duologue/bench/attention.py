"""Speed of the attention kernel alone, on SmolLM2's shape and others: softmax included, projections not.

KV heads are shared out over the threads, as in the executor, and every head of every layer has KV of its own,
so that decoding reads memory and not a cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from duologue.kernels import PAGE_TOKENS, attention, rows


@dataclass(frozen=True)
class AttentionWorkload:
    """`streams` sequences whose last `tokens` of `context` positions attend.

    `kv_heads` counts the heads of all layers.
    """

    name: str
    context: int
    tokens: int
    kv_heads: int
    group: int = 3
    head_dim: int = 64
    streams: int = 1

    @property
    def operations(self) -> int:
        """int8 operations of Q.K and P.V (two for each multiply-add) over the keys that each query sees."""
        first = self.context - self.tokens
        seen = sum(range(first + 1, self.context + 1))
        return 4 * seen * self.group * self.head_dim * self.kv_heads * self.streams

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys, values and scales under the sequences."""
        return self.context * (2 * self.head_dim + 8) * self.kv_heads * self.streams


@dataclass(frozen=True)
class AttentionReading:
    """Seconds of each repetition of a workload, on `threads` threads."""

    workload: AttentionWorkload
    threads: int
    samples_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median over the repetitions."""
        return statistics.median(self.samples_s)

    @property
    def gop_per_s(self) -> float:
        return self.workload.operations / self.seconds / 1e9

    @property
    def gb_per_s(self) -> float:
        """KV read once, over the time: for decoding, to compare with the machine's read bandwidth."""
        return self.workload.kv_bytes / self.seconds / 1e9


WORKLOADS = (
    AttentionWorkload("prefill 512", 512, 512, kv_heads=6),
    AttentionWorkload("prefill 4096", 4096, 4096, kv_heads=2),
    AttentionWorkload("decode 512", 512, 1, kv_heads=90),
    AttentionWorkload("decode 4096", 4096, 1, kv_heads=90),
    AttentionWorkload("decode 8192", 8192, 1, kv_heads=90),
    AttentionWorkload("decode 32 x 512", 512, 1, kv_heads=90, streams=32),
    AttentionWorkload("decode 4096, multi-query", 4096, 1, kv_heads=90, group=9),
)


def bench_attention(
    workloads: Sequence[AttentionWorkload] = WORKLOADS,
    *,
    threads: int = 2,
    repetitions: int = 5,
    isa: str = "",
) -> list[AttentionReading]:
    """Measure every workload `repetitions` times after a warm-up.

    Raises RuntimeError when `isa` names an instruction set that this CPU lacks.
    """
    return [_measure(workload, threads, repetitions, isa) for workload in workloads]


def _measure(workload: AttentionWorkload, threads: int, repetitions: int, isa: str) -> AttentionReading:
    rng = np.random.default_rng(0)
    dim, heads = workload.head_dim, workload.kv_heads
    pages = -(-workload.context // PAGE_TOKENS)
    block_bytes = attention.kv_block_bytes(dim)
    pool = np.empty((pages * workload.streams, heads * block_bytes), dtype=np.uint8)
    page_ids = rng.permutation(pool.shape[0]).astype(np.int32).reshape(workload.streams, pages)
    first_head = np.empty((pages, block_bytes), dtype=np.uint8)
    keys, values = rng.standard_normal((2, workload.context, dim)).astype(np.float32)
    attention.store_kv(first_head, np.arange(pages), 0, 0, keys, values, isa=isa)
    for ids in page_ids:
        pool[ids] = np.tile(first_head, heads)

    q = rng.standard_normal((heads * workload.tokens * workload.group, dim)).astype(np.float32)
    codes, scale = rows.quantize_rows(q * np.float32(dim**-0.5), isa=isa)
    codes, scale = codes.reshape(heads, -1, dim), scale.reshape(heads, -1)
    out = np.empty((workload.streams, *codes.shape), dtype=np.float32)
    offsets = np.arange(heads) * block_bytes

    def attend(thread: int) -> None:
        mine = slice(heads * thread // threads, heads * (thread + 1) // threads)
        for stream, ids in enumerate(page_ids):
            attention.attend(
                pool,
                ids,
                offsets[mine],
                codes[mine],
                scale[mine],
                group=workload.group,
                first_position=workload.context - workload.tokens,
                isa=isa,
                out=out[stream, mine],
            )

    samples = []
    with ThreadPoolExecutor(threads) as pool_of_threads:
        for _ in range(repetitions + 1):
            started = time.perf_counter()
            list(pool_of_threads.map(attend, range(threads)))
            samples.append(time.perf_counter() - started)
    return AttentionReading(workload, threads, tuple(samples[1:]))
