"""The metrics that a scrape gets."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from duologue import Engine
from tests.server.conftest import RunningServer, running_server, unique


@pytest.fixture
def fresh(tiny_engine: Engine) -> Iterator[RunningServer]:
    with running_server(tiny_engine) as server:
        yield server


def scrape(server: RunningServer) -> dict[str, float]:
    """Samples by name and labels."""
    response = httpx.get(server.url + "metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation, family.name
        for sample in family.samples:
            own = {name: value for name, value in sample.labels.items() if name != "model"}
            labels = ",".join(sorted(own.values()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def scrape_labelled(server: RunningServer) -> dict[tuple[str, str], float]:
    """Samples by name and model."""
    families = text_string_to_metric_families(httpx.get(server.url + "metrics").text)
    return {
        (sample.name, sample.labels["model"]): sample.value
        for family in families
        for sample in family.samples
        if "model" in sample.labels
    }


def test_a_reply_is_counted(fresh: RunningServer) -> None:
    before = scrape(fresh)
    fresh.post(max_tokens=10, ignore_eos=True)
    fresh.post(temperature=-1)
    after = scrape(fresh)
    assert after["duologue_chat_requests_total{length}"] == 1
    assert after["duologue_chat_requests_total{refused}"] == 1
    assert after["duologue_time_to_first_token_seconds_count"] == 1
    assert after["duologue_inter_token_latency_seconds_count"] == 9
    assert after["duologue_time_per_output_token_seconds_count"] == 1
    assert after["duologue_request_duration_seconds_count"] == 1  # of a model: the refusal named none
    assert after["duologue_chat_requests_in_flight"] == 0
    assert after["duologue_completion_tokens_total"] - before["duologue_completion_tokens_total"] == 10
    assert after["duologue_engine_step_seconds_total"] > before["duologue_engine_step_seconds_total"]
    # The first token's time and the later ones' make up the request's.
    parts_s = after["duologue_time_to_first_token_seconds_sum"]
    parts_s += after["duologue_inter_token_latency_seconds_sum"]
    assert 0 < parts_s <= after["duologue_request_duration_seconds_sum"]


def test_the_engine_s_readings_are_those_of_its_stats(fresh: RunningServer) -> None:
    samples, stats = scrape(fresh), fresh.engine.stats()
    assert samples["duologue_kv_pages"] == stats.kv_pages_total
    assert samples["duologue_kv_pages_free"] == stats.kv_pages_free
    assert samples["duologue_kv_bytes_per_token"] == stats.kv_bytes_per_token
    assert samples["duologue_kv_memory_bytes"] == stats.kv_memory_bytes
    assert samples["duologue_requests_running"] == 0
    assert samples["process_resident_memory_bytes"] > 0


def test_hits_and_misses_are_counted_with_tier_and_cause(fresh: RunningServer) -> None:
    content, fields = f"{unique()} what is a tide? " * 10, {"max_tokens": 1, "ignore_eos": True}
    before = scrape(fresh)
    first = fresh.post(content=content, cache_salt="a", **fields).json()["usage"]["prompt_tokens"]
    middle = scrape(fresh)
    again = fresh.post(content=content, cache_salt="a", **fields).json()["usage"]["prompt_tokens_details"]
    httpx.post(fresh.url + "v1/cache/lookup", json=fresh.chat_body(content))
    after = scrape(fresh)

    def grown(name: str, start: dict[str, float], end: dict[str, float]) -> float:
        return end[f"duologue_cache_{name}"] - start.get(f"duologue_cache_{name}", 0)

    assert grown("miss_tokens_total{new}", before, middle) == first
    assert grown("hit_tokens_total{memory}", before, middle) == 0
    assert grown("hit_tokens_total{memory}", middle, after) == again["cached_tokens"] == first - 1
    assert grown("lookups_total", middle, after) == 1
    assert {"new", "evicted", "edited", "template", "volatile", "salt"} <= {
        name.split("{")[1][:-1] for name in after if name.startswith("duologue_cache_miss_tokens_total")
    }
    stats = fresh.engine.stats()
    for cause, tokens in stats.cache_miss_tokens_total.items():  # counted once, by the engine
        assert after[f"duologue_cache_miss_tokens_total{{{cause}}}"] == tokens
    assert after["duologue_dialogue_memory_bytes"] > before["duologue_dialogue_memory_bytes"]
    assert after["duologue_cache_pages"] == stats.cache_pages > 0
    assert after["duologue_cache_bytes"] == stats.cache_bytes > 0
    assert after["duologue_cache_index_bytes"] == stats.cache_index_bytes > 0
    fresh.post(content=content, cache_salt="b", **fields)
    end = scrape(fresh)  # without keys, what another salt holds is nobody's business
    assert (grown("miss_tokens_total{new}", after, end), grown("miss_tokens_total{salt}", after, end)) == (
        first,
        0,
    )
    gone = httpx.delete(fresh.url + "v1/cache").json()
    assert scrape(fresh)["duologue_cache_forgotten_pages_total"] == gone["pages"] > 0
