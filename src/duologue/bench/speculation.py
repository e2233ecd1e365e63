"""Speed of replies with drafts and without, in one run, and a check that they are the same.

The two engines take turns on each request, because on a shared machine only neighbouring readings compare. What is timed is from
a reply's first token to its last, of all its streams together: decoding with the engine's own loop, without the prompt.
"""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from duologue.bench.speculation_workload import CASES, SpeculationCase
from duologue.engine.engine import Engine
from duologue.engine.events import TokenEvent
from duologue.engine.load import load_for_engine
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.scheduler import SchedulerConfig
from duologue.errors import DuologueError

_KV_BYTES = 64 << 20


@dataclass
class SpeculationReading:
    """All requests of one kind, by round: tokens behind the first and the seconds they took, without drafts and with them."""

    kind: str
    tokens: list[int] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)
    drafting_s: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def plain_tokens_per_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(n / s for n, s in zip(self.tokens, self.plain_s, strict=True))

    @property
    def drafting_tokens_per_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(n / s for n, s in zip(self.tokens, self.drafting_s, strict=True))

    @property
    def speedups(self) -> list[float]:
        """Of each round."""
        return [plain / drafting for plain, drafting in zip(self.plain_s, self.drafting_s, strict=True)]

    @property
    def speedup(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.speedups)

    @property
    def acceptance(self) -> float:
        """Share of the drafted tokens that were right."""
        return self.accepted / self.drafted if self.drafted else 0.0


def bench_speculation(
    model: str | Path,
    *,
    threads: int | None = None,
    rounds: int = 3,
    streams: int = 1,
    speculation_tokens: int = SchedulerConfig.speculation_tokens,
    cases: Sequence[SpeculationCase] = CASES,
    on_progress: Callable[[str], None] = lambda message: None,
) -> list[SpeculationReading]:
    """Run every case without drafts and with up to `speculation_tokens`, `rounds` times after one for warming up.

    With several `streams` a request runs so many times at once, each with noise of its own. Raises ModelLoadError,
    UnsupportedModelError, and DuologueError when a reply with drafts differs from the one without.
    """
    packed = load_for_engine(model, progress=True)
    configs = (SchedulerConfig(speculation_tokens=0), SchedulerConfig(speculation_tokens=speculation_tokens))
    readings: dict[str, SpeculationReading] = {}
    with (
        Engine(
            packed, threads=threads, kv_memory_bytes=_KV_BYTES * (streams + 2), scheduler=configs[0]
        ) as plain,
        Engine(
            packed, threads=threads, kv_memory_bytes=_KV_BYTES * (streams + 2), scheduler=configs[1]
        ) as drafting,
    ):
        for turn in range(rounds + 1):
            on_progress(f"round {turn} of {rounds}" if turn else "warming up")
            sums: dict[str, list[float]] = {}
            for case in cases:
                before = drafting.stats()
                expected, tokens, plain_s = _run(plain, case, streams)
                found, _, drafting_s = _run(drafting, case, streams)
                if found != expected:
                    raise DuologueError(f"a reply with drafts differs from the one without: {case}")
                if not turn:
                    continue
                total = sums.setdefault(case.kind, [0, 0.0, 0.0])
                for i, value in enumerate((tokens, plain_s, drafting_s)):
                    total[i] += value
                reading = readings.setdefault(case.kind, SpeculationReading(case.kind))
                after = drafting.stats()
                reading.drafted += after.drafted_tokens_total - before.drafted_tokens_total
                reading.accepted += after.accepted_tokens_total - before.accepted_tokens_total
            for kind, (count, plain_s, drafting_s) in sums.items():
                readings[kind].tokens.append(int(count))
                readings[kind].plain_s.append(plain_s)
                readings[kind].drafting_s.append(drafting_s)
    return list(readings.values())


def _run(engine: Engine, case: SpeculationCase, streams: int) -> tuple[list[list[int]], int, float]:
    """The replies of each stream, tokens behind the first of each, and seconds from the first of all to the last."""
    events: queue.SimpleQueue[tuple[int, float, TokenEvent]] = queue.SimpleQueue()

    def listener(stream: int) -> Callable[[TokenEvent], None]:
        return lambda event: events.put((stream, time.perf_counter(), event))

    ids = engine.encode_chat([{"role": "user", "content": case.prompt}])
    params = engine.chat_params(
        SamplingParams(temperature=case.temperature, seed=1, max_tokens=case.reply_tokens)
    )
    for stream in range(streams):
        engine.submit(ids, params, listener(stream), choice=stream)
    replies: list[list[int]] = [[] for _ in range(streams)]
    times_s: list[float] = []
    left = streams
    while left:
        stream, at_s, event = events.get()
        if event.error is not None:
            raise DuologueError(event.error)
        replies[stream] += event.token_ids
        times_s.append(at_s)
        left -= event.finish_reason is not None
    engine.drain()
    return replies, sum(len(reply) - 1 for reply in replies), times_s[-1] - times_s[0]
