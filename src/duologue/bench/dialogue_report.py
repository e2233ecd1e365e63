"""What a run of dialogues says: rates, hit rates, and latencies by turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from duologue.bench.dialogue_http import ChatReading
from duologue.bench.dialogues import RequestRecord, Run

GIB = 1 << 30


@dataclass(frozen=True)
class Percentiles:
    """In seconds; interpolated between the two nearest readings."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles | None:
        """None without any value."""
        readings = list(values)
        return cls(*(float(p) for p in np.percentile(readings, (50, 90, 99)))) if readings else None


@dataclass(frozen=True)
class Reuse:
    """Token counts over some requests, and what of them the server took from its cache.

    `by_query` is the share of requests with any cached token, `by_token` cached tokens of prompt tokens, `of_processed` the same of
    the tokens that the server had processed before (RequestRecord.processed_tokens). None where the server does not say or there
    was nothing to reuse.
    """

    by_query: float | None
    by_token: float | None
    of_processed: float | None

    @classmethod
    def of(cls, records: Sequence[RequestRecord]) -> Reuse:
        told = [
            (record, record.reading, record.reading.cached_tokens)
            for record in records
            if record.reading is not None and record.reading.cached_tokens is not None
        ]
        prompt = sum(reading.prompt_tokens for _, reading, _ in told)
        # A server that cut the history has fewer tokens than were processed; one token is computed again in any case.
        processed = [
            (min(record.processed_tokens, reading.prompt_tokens - 1), cached)
            for record, reading, cached in told
        ]
        reusable = sum(tokens for tokens, _ in processed)
        return cls(
            by_query=_ratio(sum(cached > 0 for _, _, cached in told), len(told)),
            by_token=_ratio(sum(cached for _, _, cached in told), prompt),
            of_processed=_ratio(sum(min(tokens, cached) for tokens, cached in processed), reusable),
        )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True)
class Group:
    """Some requests of a run: latencies of the successful ones, and reuse."""

    name: str
    requests: int
    errors: int
    ttft: Percentiles | None
    tpot: Percentiles | None
    reuse: Reuse

    @classmethod
    def of(cls, name: str, records: Sequence[RequestRecord]) -> Group:
        readings = _readings(records)
        per_token = [reading.per_token_s for reading in readings]
        return cls(
            name=name,
            requests=len(records),
            errors=sum(record.reading is None for record in records),
            ttft=Percentiles.of(reading.first_s for reading in readings),
            tpot=Percentiles.of(s for s in per_token if s is not None),
            reuse=Reuse.of(records),
        )


@dataclass(frozen=True)
class KvUse:
    """KV memory of a dialogue.

    `bytes_if_alone` counts the tokens at its end, sharing nothing; `bytes_measured` is what the pool grew by, divided by the
    dialogues, known only when nothing had to be evicted.
    """

    bytes_if_alone: float
    bytes_measured: float | None

    @property
    def dialogues_per_gib(self) -> float:
        """How many stay resident in 1 GiB."""
        return GIB / (self.bytes_measured or self.bytes_if_alone)


@dataclass(frozen=True)
class Report:
    """The summary of one run."""

    requests_per_s: float
    output_tokens_per_s: float
    client_cpu_share: float
    everything: Group
    first: Group
    later: Group
    turns: tuple[Group, ...]
    kv: KvUse | None


def make_report(run: Run) -> Report:
    """Summarises a run. Rates count successful requests, from the first request's start to the last one's end."""
    records = run.records
    readings = _readings(records)
    by_turn: dict[int, list[RequestRecord]] = {}
    for record in records:
        by_turn.setdefault(record.turn, []).append(record)
    return Report(
        requests_per_s=len(readings) / run.wall_s,
        output_tokens_per_s=sum(reading.completion_tokens for reading in readings) / run.wall_s,
        client_cpu_share=run.client_cpu_s / run.wall_s,
        everything=Group.of("all", records),
        first=Group.of("first turn", [record for record in records if record.is_first]),
        later=Group.of("later turns", [record for record in records if not record.is_first]),
        turns=tuple(Group.of(str(turn), by_turn[turn]) for turn in sorted(by_turn)),
        kv=_kv_use(run),
    )


def _readings(records: Iterable[RequestRecord]) -> list[ChatReading]:
    return [record.reading for record in records if record.reading is not None]


def _kv_use(run: Run) -> KvUse | None:
    before, after = run.kv_before, run.kv_after
    if before is None or after is None:
        return None
    tokens: dict[int, int] = {}
    for record in run.records:
        if record.reading is not None:
            tokens[record.dialogue] = record.reading.prompt_tokens + record.reading.completion_tokens
    alone = after.bytes_per_token * sum(tokens.values()) / len(tokens)
    grown = after.used_pages - before.used_pages
    measured = None if grown <= 0 or after.is_full else grown * after.page_bytes / len(tokens)
    return KvUse(alone, measured)


def report_dict(run: Run, report: Report) -> dict[str, Any]:
    """For JSON: settings, summary and every request."""
    load = asdict(run.load)
    kv = report.kv
    return {
        "model": run.model,
        "workload": asdict(run.workload),
        "load": load,
        "wall_s": run.wall_s,
        "late_arrivals": run.late,
        "persona_tokens": run.persona_tokens,
        **asdict(report),
        "kv": None if kv is None else {**asdict(kv), "dialogues_per_gib": kv.dialogues_per_gib},
        "errors": sorted({record.error for record in run.records if record.error}),
        "requests": [_record_dict(record) for record in run.records],
    }


def _record_dict(record: RequestRecord) -> dict[str, Any]:
    values = asdict(record)
    reading = values.pop("reading")
    if reading is not None:
        del reading["text"]
        values |= reading
    return values
