"""Prometheus metrics of one server, in a registry of its own so that several servers fit into one process.

What the engine counts is read when Prometheus asks; only latencies are recorded per token, and they are taken
from the time stamps of the engine's thread, so that a busy event loop does not hide in them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import duologue

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
    "cache_evicted_pages_total": ("duologue_cache_evicted_pages", "KV pages that were evicted"),
    "steps_total": ("duologue_engine_steps", "Engine steps"),
    "step_s_total": ("duologue_engine_step_seconds", "Time in engine steps"),
    "forward_s_total": ("duologue_engine_forward_seconds", "Time in the model's forward step"),
}


class _EngineCollector(Collector):
    def __init__(self, stats: Callable[[], EngineStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for field, (name, text) in _ENGINE_GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(stats, field))
        for field, (name, text) in _ENGINE_COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(stats, field))
        hits = CounterMetricFamily(
            "duologue_cache_hit_tokens", "Prompt tokens whose KV was stored, by where", labels=["tier"]
        )
        hits.add_metric(["memory"], stats.cache_hit_tokens_total)
        misses = CounterMetricFamily(
            "duologue_cache_miss_tokens", "Prompt tokens that were computed, by why", labels=["cause"]
        )
        for cause, tokens in stats.cache_miss_tokens_total.items():
            misses.add_metric([cause], tokens)
        yield from (hits, misses)

    def describe(self) -> Iterable[Metric]:
        return []


class Metrics:
    """The metrics of one server. `stats` and `dialogue_bytes` are called at every scrape."""

    content_type = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self, stats: Callable[[], EngineStats], model_name: str, dialogue_bytes: Callable[[], int]
    ) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_EngineCollector(stats))
        info = Gauge("duologue_info", "Version and model", ["version", "model"], registry=registry)
        info.labels(duologue.__version__, model_name).set(1)
        memory = Gauge(
            "duologue_dialogue_memory_bytes",
            "Bytes of replies, texts and inserts that are remembered as tokens",
            registry=registry,
        )
        memory.set_function(dialogue_bytes)
        self.requests = Counter(
            "duologue_chat_requests", "Chat completions by outcome", ["outcome"], registry=registry
        )
        self.in_flight = Gauge(
            "duologue_chat_requests_in_flight", "Chat completions in work", registry=registry
        )
        self.unauthorized = Counter(
            "duologue_unauthorized_requests", "Requests without a valid API key", registry=registry
        )
        self.lookups = Counter(
            "duologue_cache_lookups", "Lookups that ran nothing, for routers", registry=registry
        )
        self.forgotten_pages = Counter(
            "duologue_cache_forgotten_pages", "KV pages that clients had deleted", registry=registry
        )
        self.first_token = Histogram(
            "duologue_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )
        self.inter_token = Histogram(
            "duologue_inter_token_latency_seconds",
            "Between one token of a request and its next",
            buckets=_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self.per_output_token = Histogram(
            "duologue_time_per_output_token_seconds",
            "Mean time per token after the first, once per request",
            buckets=_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self.duration = Histogram(
            "duologue_request_duration_seconds",
            "From the request's arrival to the end of its response",
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class RequestClock:
    """Latencies of one chat completion, recorded as its tokens come."""

    __slots__ = ("_first_s", "_last_s", "_metrics", "_started_s", "_tokens")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started_s = time.perf_counter()
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
            self._metrics.first_token.observe(at_s - self._started_s)
        else:
            each_s = (at_s - self._last_s) / tokens
            for _ in range(tokens):
                self._metrics.inter_token.observe(each_s)
        self._tokens += tokens
        self._last_s = at_s

    def end(self, outcome: str) -> None:
        """Records the end of the response; `outcome` is a finish reason, `disconnect` or `error`."""
        self._metrics.requests.labels(outcome).inc()
        self._metrics.duration.observe(time.perf_counter() - self._started_s)
        if self._tokens > 1:
            self._metrics.per_output_token.observe((self._last_s - self._first_s) / (self._tokens - 1))
