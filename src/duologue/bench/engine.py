"""Speed of the embedded engine on one machine, alone or beside llama.cpp in the same run.

What is timed is the forward step with its sampling, as the engine runs it; tokenizing and HTTP are not. Every figure comes with
the memory traffic (decode) or the arithmetic (prefill) that it implies, so that it can be held against the machine's peaks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.bench.llama_cpp import WORKLOADS, LlamaCpp, Reading, Settings, Workload
from duologue.cache.kv_cache import GLOBAL, LOCAL
from duologue.engine.chunk import Chunk
from duologue.engine.load import load_for_engine
from duologue.engine.request import FixedPages, Request
from duologue.engine.runner import Runner
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.threads import default_threads
from duologue.kernels import PAGE_TOKENS
from duologue.models.packed_model import PackedModel
from duologue.models.spec import ModelSpec

_STALE = 0x3C
"""A byte that reads as a code and, four of them, as a scale of ordinary size."""
BATCH_TOKENS = 512
"""Tokens of a prefill step, as the engine's default."""


@dataclass(frozen=True)
class EngineReading:
    """Our speed on one workload: `samples` in tokens per second, of all streams together."""

    workload: Workload
    samples: tuple[float, ...]
    bytes_per_s: float
    operations_per_s: float

    @property
    def tokens_per_s(self) -> float:
        """Median over the repetitions."""
        return statistics.median(self.samples)


def matmul_weights(spec: ModelSpec) -> int:
    """Weights multiplied for every token, the head not counted."""
    total = 0
    for layer in spec.layers:
        query, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        total += spec.hidden_size * (2 * query + (3 if layer.mlp.gated else 2) * layer.mlp_size)
        total += 0 if layer.kv_owner is not None else 2 * spec.hidden_size * kv
    return total


def attention_operations(spec: ModelSpec, first: int, count: int) -> int:
    """int8 operations (two for each multiply-add) of Q.K and P.V for positions first .. first + count - 1."""
    total = 0
    for layer in spec.layers:
        window = layer.window or first + count
        growing = max(0, min(count, window - first))  # positions that do not see a whole window yet
        seen = growing * first + growing * (growing + 1) // 2 + (count - growing) * window
        total += 2 * 2 * layer.heads * layer.head_dim * seen
    return total


def kv_bytes_read(spec: ModelSpec, position: int) -> int:
    """KV bytes that one decode step reads for a sequence at `position`."""
    total = 0
    for layer in spec.layers:
        seen = min(position + 1, layer.window or position + 1)
        total += seen * layer.kv_heads * (2 * layer.head_dim + 8)
    return total


def _pages_for(workload: Workload) -> int:
    tokens = max(workload.prefill_tokens, workload.depth_tokens, 1) + workload.decode_tokens + 1
    return workload.streams * -(-tokens // PAGE_TOKENS)


class EngineUnderTest:
    """The engine's runner on one model, driven without scheduler or HTTP."""

    def __init__(
        self,
        model: PackedModel,
        *,
        threads: int | None = None,
        isa: str = "",
        workloads: Iterable[Workload] = WORKLOADS,
    ) -> None:
        """Has room for the largest of `workloads`."""
        self.model = model
        self.threads = threads or default_threads()
        self._pages = max(_pages_for(workload) for workload in workloads)
        self._runner = Runner(
            model.native(),
            vocab_size=model.spec.vocab_size,
            page_count=self._pages,
            local_page_count=self._pages,
            threads=self.threads,
            isa=isa,
        )
        self._next_page = 0

    def measure(self, workload: Workload, *, repetitions: int = 3, prefill: bool = True) -> EngineReading:
        """Run a workload `repetitions` times after one warm-up.

        Without `prefill`, decoding goes on from stale memory: as fast, and ready at once.
        """
        self._next_page = 0
        if workload.prefill_tokens:
            return self._measure_prefill(workload, repetitions)
        return self._measure_decode(workload, repetitions, prefill)

    def _measure_prefill(self, workload: Workload, repetitions: int) -> EngineReading:
        n = workload.prefill_tokens
        request = self._request(n, n)
        spec = self.model.spec
        self._prefill(request)
        samples = []
        for _ in range(repetitions):
            request.computed = 0
            started = time.perf_counter()
            self._prefill(request)
            samples.append(n / (time.perf_counter() - started))
        per_run = (
            2 * matmul_weights(spec) * n
            + attention_operations(spec, 0, n)
            + 2 * spec.vocab_size * spec.hidden_size
        )
        return EngineReading(workload, tuple(samples), 0.0, per_run / n * statistics.median(samples))

    def _measure_decode(self, workload: Workload, repetitions: int, prefill: bool) -> EngineReading:
        depth, steps, spec = max(workload.depth_tokens, 1), workload.decode_tokens, self.model.spec
        requests = [self._request(depth, depth + steps) for _ in range(workload.streams)]
        if prefill:
            self._prefill(requests[0])
        else:
            for pool in self._runner.kv_pools:
                pool[self._pages_of(requests[0])] = _STALE
            requests[0].append(0)
        full = -(-depth // PAGE_TOKENS)
        first_pages = self._pages_of(requests[0])
        for request in requests[1:]:
            pages = self._pages_of(request)
            # Equal prompts: copying pages gives the same memory traffic as computing them again.
            for kind in (GLOBAL, LOCAL):
                for i in range(full):
                    self._runner.copy_page(kind, int(first_pages[i]), int(pages[i]))
            request.append(int(requests[0].tokens[depth]))
            request.computed = depth
        samples = []
        for repetition in range(repetitions + 1):
            for request in requests:
                request.total_tokens, request.computed = depth + 1, depth
            started = time.perf_counter()
            for _ in range(steps):
                self._step([Chunk(request, 1, samples=True) for request in requests])
            if repetition:
                samples.append(len(requests) * steps / (time.perf_counter() - started))
        kv = kv_bytes_read(spec, depth + steps // 2) * len(requests)
        per_step = matmul_weights(spec) + spec.vocab_size * spec.hidden_size + kv
        steps_per_s = statistics.median(samples) / len(requests)
        operations = 2 * (matmul_weights(spec) + spec.vocab_size * spec.hidden_size) * len(requests)
        operations += attention_operations(spec, depth + steps // 2, 1) * len(requests)
        return EngineReading(workload, tuple(samples), per_step * steps_per_s, operations * steps_per_s)

    @staticmethod
    def _pages_of(request: Request) -> npt.NDArray[np.int32]:
        assert isinstance(request.tables, FixedPages)
        return request.tables.pages

    def _request(self, prompt_tokens: int, total_tokens: int) -> Request:
        ids = np.random.default_rng(7).integers(0, self.model.spec.vocab_size, prompt_tokens)
        pages = -(-(total_tokens + 1) // PAGE_TOKENS)
        request = Request(
            0,
            ids.tolist(),
            SamplingParams(temperature=0.0, ignore_eos=True),
            seed=0,
            max_total_tokens=total_tokens + 1,
            on_event=lambda event: None,
            detokenizer=None,
            stop_matcher=None,
        )
        request.tables = FixedPages(np.arange(self._next_page, self._next_page + pages, dtype=np.int32))
        self._next_page += pages
        assert self._next_page <= self._pages, "the benchmark's pool is too small for this workload"
        return request

    def _prefill(self, request: Request) -> None:
        request.total_tokens = request.prompt_tokens
        while request.computed < request.prompt_tokens:
            count = min(BATCH_TOKENS, request.prompt_tokens - request.computed)
            self._step([Chunk(request, count, samples=request.computed + count == request.prompt_tokens)])

    def _step(self, chunks: Sequence[Chunk]) -> None:
        sampled, _ = self._runner.step(chunks)
        row = 0
        for chunk in chunks:
            chunk.request.computed += chunk.count
            if chunk.samples:
                chunk.request.append(int(sampled[row]))
                row += 1


@dataclass(frozen=True)
class Comparison:
    """One workload, ours and (when a peer ran) each peer's reading of the same minutes."""

    ours: EngineReading
    peers: dict[str, Reading]


def bench_engine(
    model: str | Path,
    *,
    threads: int | None = None,
    repetitions: int = 3,
    rounds: int = 1,
    workloads: Iterable[Workload] = WORKLOADS,
    peer: LlamaCpp | None = None,
    peer_models: dict[str, Path] | None = None,
    on_progress: Callable[[str], None] = lambda message: None,
) -> list[Comparison]:
    """Measure every workload; beside a peer, alternate with it `rounds` times and pool the samples.

    `peer_models` maps a label ("Q8_0") to a GGUF file. Raises ModelLoadError or PeerError.
    """
    workloads = tuple(workloads)
    engine = EngineUnderTest(load_for_engine(model, progress=True), threads=threads, workloads=workloads)
    results = []
    for workload in workloads:
        ours: list[EngineReading] = []
        theirs: dict[str, list[Reading]] = {label: [] for label in peer_models or {}}
        for turn in range(rounds):
            on_progress(f"{workload.name}: round {turn + 1} of {rounds}")
            ours.append(engine.measure(workload, repetitions=repetitions))
            for label, path in (peer_models or {}).items():
                assert peer is not None
                settings = Settings(threads=engine.threads)
                theirs[label].append(peer.measure(path, workload, repetitions=repetitions, settings=settings))
        results.append(
            Comparison(_pool(ours), {label: _pool_peer(readings) for label, readings in theirs.items()})
        )
    return results


def _pool(readings: Sequence[EngineReading]) -> EngineReading:
    samples = tuple(sample for reading in readings for sample in reading.samples)
    # Traffic and arithmetic are proportional to tokens: scale the first reading's to the pooled median.
    factor = statistics.median(samples) / readings[0].tokens_per_s
    first = readings[0]
    return EngineReading(first.workload, samples, first.bytes_per_s * factor, first.operations_per_s * factor)


def _pool_peer(readings: Sequence[Reading]) -> Reading:
    samples = tuple(sample for reading in readings for sample in reading.samples)
    return Reading(readings[0].workload, readings[0].model, readings[0].settings, samples)
