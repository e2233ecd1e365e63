"""Prometheus metrics of one server, in a registry of its own so that several servers fit into one process.

What the engine counts is read when Prometheus asks; only latencies are recorded per token, and they are taken
from the time stamps of the engine's thread, so that a busy event loop does not hide in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import duologue
from duologue.server.token_histogram import TokenHistogram, TokenHistogramCollector

if TYPE_CHECKING:
    from duologue.engine.events import EngineStats, TokenEvent

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_BUCKETS_S = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_REQUEST_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

# field of EngineStats -> metric name (counters get `_total` from the client library), help
_ENGINE_GAUGES = {
    "running": ("duologue_requests_running", "Requests that hold KV pages"),
    "waiting": ("duologue_requests_waiting", "Requests that wait for KV pages"),
    "kv_pages_total": ("duologue_kv_pages", "KV pages in the pool"),
    "kv_pages_free": ("duologue_kv_pages_free", "KV pages that no request holds"),
    "kv_bytes_per_token": ("duologue_kv_bytes_per_token", "KV bytes that one token takes"),
    "kv_memory_bytes": ("duologue_kv_memory_bytes", "Bytes of the KV pool"),
    "weight_bytes": ("duologue_weight_bytes", "Bytes of the packed weights"),
    "workspace_bytes": ("duologue_workspace_bytes", "Bytes of the forward step's buffers"),
    "cache_pages": ("duologue_cache_pages", "KV pages that hold something reusable"),
    "cache_bytes": ("duologue_cache_bytes", "Bytes of the KV pages that hold something reusable"),
    "cache_index_bytes": ("duologue_cache_index_bytes", "Bytes of the index that finds stored prefixes"),
}
_ENGINE_COUNTERS = {
    "requests_total": ("duologue_engine_requests", "Requests that the engine accepted"),
    "aborted_total": ("duologue_engine_aborted_requests", "Requests that were aborted"),
    "preemptions_total": ("duologue_preemptions", "Requests that lost their KV pages and were recomputed"),
    "prompt_tokens_total": ("duologue_prompt_tokens", "Prompt tokens of all requests"),
    "computed_tokens_total": ("duologue_computed_tokens", "Tokens that went through the model"),
    "completion_tokens_total": ("duologue_completion_tokens", "Generated tokens of all requests"),
    "drafted_tokens_total": (
        "duologue_drafted_tokens",
        "Tokens that were guessed and computed with the step before them",
    ),
    "accepted_tokens_total": ("duologue_accepted_tokens", "Drafted tokens that were right"),
    "cache_evicted_pages_total": ("duologue_cache_evicted_pages", "KV pages that were evicted"),
    "steps_total": ("duologue_engine_steps", "Engine steps"),
    "step_s_total": ("duologue_engine_step_seconds", "Time in engine steps"),
    "forward_s_total": ("duologue_engine_forward_seconds", "Time in the model's forward step"),
}


class _EngineCollector(Collector):
    def __init__(self, stats: Mapping[str, Callable[[], EngineStats]]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        read = {name: stats() for name, stats in self._stats.items()}
        for kind, fields in ((GaugeMetricFamily, _ENGINE_GAUGES), (CounterMetricFamily, _ENGINE_COUNTERS)):
            for field, (name, text) in fields.items():
                family = kind(name, text, labels=["model"])
                for model, stats in read.items():
                    family.add_metric([model], getattr(stats, field))
                yield family
        hits = CounterMetricFamily(
            "duologue_cache_hit_tokens",
            "Prompt tokens whose KV was stored, by where",
            labels=["model", "tier"],
        )
        misses = CounterMetricFamily(
            "duologue_cache_miss_tokens",
            "Prompt tokens that were computed, by why",
            labels=["model", "cause"],
        )
        for model, stats in read.items():
            hits.add_metric([model, "memory"], stats.cache_hit_tokens_total)
            for cause, tokens in stats.cache_miss_tokens_total.items():
                misses.add_metric([model, cause], tokens)
        yield from (hits, misses)

    def describe(self) -> Iterable[Metric]:
        return []


class Metrics:
    """The metrics of one server. `stats` and `dialogue_bytes`, by model, are called at every scrape.

    `of` has those of one model; the model is empty for requests that never got to name one.
    """

    content_type = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self,
        stats: Mapping[str, Callable[[], EngineStats]],
        dialogue_bytes: Mapping[str, Callable[[], int]],
    ) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_EngineCollector(stats))
        info = Gauge("duologue_info", "Version and model", ["version", "model"], registry=registry)
        memory = Gauge(
            "duologue_dialogue_memory_bytes",
            "Bytes of replies, texts and inserts that are remembered as tokens",
            ["model"],
            registry=registry,
        )
        for name in stats:
            info.labels(duologue.__version__, name).set(1)
            memory.labels(name).set_function(dialogue_bytes[name])
        self.requests = Counter(
            "duologue_chat_requests", "Completions by outcome", ["model", "outcome"], registry=registry
        )
        self.in_flight = Gauge("duologue_chat_requests_in_flight", "Completions in work", registry=registry)
        self.unauthorized = Counter(
            "duologue_unauthorized_requests", "Requests without a valid API key", registry=registry
        )
        families = _ModelFamilies(registry)
        self._of = {name: ModelMetrics(name, families) for name in stats}
        registry.register(
            TokenHistogramCollector(
                "duologue_inter_token_latency_seconds",
                "Between one token of a choice and its next",
                {name: metrics.inter_token for name, metrics in self._of.items()},
            )
        )

    def of(self, model: str) -> ModelMetrics:
        """Those of one model."""
        return self._of[model]

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class _ModelFamilies:
    """Metrics that have a label for the model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"duologue_{name}", text, ["model", *labels], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"duologue_{name}", text, ["model"], buckets=buckets, registry=registry)

        self.lookups = counter("cache_lookups", "Lookups that ran nothing, for routers")
        self.forgotten_pages = counter("cache_forgotten_pages", "KV pages that clients had deleted")
        self.first_token = histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token", _TTFT_BUCKETS_S
        )
        self.per_output_token = histogram(
            "time_per_output_token_seconds",
            "Mean time per token after the first, once per choice",
            _TOKEN_BUCKETS_S,
        )
        self.duration = histogram(
            "request_duration_seconds",
            "From the request's arrival to the end of its response",
            _REQUEST_BUCKETS_S,
        )


class ModelMetrics:
    """The metrics of one model, ready to be counted."""

    def __init__(self, name: str, families: _ModelFamilies) -> None:
        self.lookups = families.lookups.labels(name)
        self.forgotten_pages = families.forgotten_pages.labels(name)
        self.first_token = families.first_token.labels(name)
        self.inter_token = TokenHistogram(_TOKEN_BUCKETS_S)
        self.per_output_token = families.per_output_token.labels(name)
        self.duration = families.duration.labels(name)


class RequestClock:
    """Latencies of one completion, recorded as its tokens come."""

    __slots__ = ("_choices", "_metrics", "_model", "model_name", "started_s")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._model: ModelMetrics | None = None
        self._choices: list[ChoiceClock] = []
        self.started_s = time.perf_counter()
        self.model_name = ""

    def of_model(self, name: str) -> None:
        """It is known for which model the request is."""
        self.model_name = name
        self._model = self._metrics.of(name)

    def choice(self) -> ChoiceClock:
        """The clock of one more choice."""
        assert self._model is not None
        clock = ChoiceClock(self._model, self.started_s)
        self._choices.append(clock)
        return clock

    def end(self, outcome: str) -> None:
        """Records the end of the response; `outcome` is a finish reason, `disconnect`, `refused` or `error`."""
        self._metrics.requests.labels(self.model_name, outcome).inc()
        if self._model is not None:
            self._model.duration.observe(time.perf_counter() - self.started_s)
        for choice in self._choices:
            choice.end()


class ChoiceClock:
    """Latencies of one choice."""

    __slots__ = ("_first_s", "_last_s", "_model", "_started_s", "_tokens")

    def __init__(self, model: ModelMetrics, started_s: float) -> None:
        self._model = model
        self._started_s = started_s
        self._first_s = 0.0
        self._last_s = 0.0
        self._tokens = 0

    def token(self, event: TokenEvent, at_s: float) -> None:
        """Records one event that came at `at_s`; several tokens in one event share its time evenly."""
        tokens = len(event.token_ids)
        if tokens == 0:
            return
        if self._tokens == 0:
            self._first_s = at_s
            self._model.first_token.observe(at_s - self._started_s)
        else:
            self._model.inter_token.observe((at_s - self._last_s) / tokens, tokens)
        self._tokens += tokens
        self._last_s = at_s

    def end(self) -> None:
        """Records what is known at the end."""
        if self._tokens > 1:
            self._model.per_output_token.observe((self._last_s - self._first_s) / (self._tokens - 1))
