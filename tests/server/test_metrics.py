"""The metrics that a scrape gets."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from duologue import Engine
from tests.server.conftest import RunningServer, running_server


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
            labels = ",".join(sorted(sample.labels.values()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


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
    assert after["duologue_request_duration_seconds_count"] == 2
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
