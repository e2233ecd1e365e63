"""Several models in one server, the limits of its queue, and who may call from where."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from duologue import Engine
from duologue.engine import grammars
from duologue.server.limits import Limits
from tests.server.conftest import RunningServer, running_server, unique, wait_until
from tests.server.test_metrics import scrape_labelled


@pytest.fixture(scope="module")
def both(tiny_model_dirs: Mapping[str, Path], tiny_engine: Engine) -> Iterator[RunningServer]:
    with (
        Engine.load(tiny_model_dirs["mqa"], kv_memory_bytes=4 << 20, threads=1) as other,
        running_server({"first": tiny_engine, "second/b": other}) as server,
    ):
        yield server


def ask(server: RunningServer, model: str, **fields: Any) -> httpx.Response:
    body = {**server.chat_body(max_tokens=4, temperature=0, ignore_eos=True, **fields), "model": model}
    return httpx.post(server.url + "v1/chat/completions", json=body, timeout=60)


def test_each_model_answers_for_itself(both: RunningServer) -> None:
    replies = {name: ask(both, name).json() for name in ("first", "second/b")}
    assert {name: reply["model"] for name, reply in replies.items()} == {n: n for n in replies}
    contents = [reply["choices"][0]["message"]["content"] for reply in replies.values()]
    assert contents[0] != contents[1]
    listed = httpx.get(both.url + "v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["first", "second/b"]
    assert httpx.get(both.url + "v1/models/second/b").json() == listed[1]
    unknown = ask(both, "third")
    assert unknown.status_code == 404
    assert "'first', 'second/b'" in unknown.json()["error"]["message"]
    for path in ("health", "ready"):
        assert httpx.get(both.url + path).status_code == 200


def test_what_has_no_model_needs_one(both: RunningServer) -> None:
    missing = httpx.post(both.url + "tokenize", json={"prompt": "x"})
    assert missing.status_code == 400
    assert missing.json()["error"]["param"] == "model"
    assert httpx.post(both.url + "tokenize", json={"prompt": "x", "model": "first"}).status_code == 200


def test_a_cache_is_forgotten_in_all_models_or_in_one(both: RunningServer) -> None:
    def stored(name: str) -> int:
        reply = ask(both, name, content=content, cache_salt=salt)
        return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    content, salt = f"{unique()} what is a tide? " * 5, unique()
    names = ("first", "second/b")
    for name in names:
        stored(name)
    assert httpx.delete(both.url + "v1/cache", params={"model": "third"}).status_code == 404
    assert httpx.delete(both.url + "v1/cache", params={"model": "first"}).json()["pages"] > 0
    assert [stored(name) > 0 for name in names] == [False, True]
    httpx.delete(both.url + "v1/cache")
    assert [stored(name) for name in names] == [0, 0]


def test_metrics_tell_models_apart(both: RunningServer) -> None:
    before = scrape_labelled(both)
    ask(both, "second/b")
    after = scrape_labelled(both)
    name = "duologue_completion_tokens_total"
    assert after[name, "second/b"] - before[name, "second/b"] == 4
    assert after[name, "first"] == before[name, "first"]
    assert after["duologue_kv_memory_bytes", "first"] > after["duologue_kv_memory_bytes", "second/b"]


class Gate:
    """An engine that runs one request at a time, and only while the gate is open."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.open = threading.Event()
        step = engine._runner.step

        def gated(*args: Any, **options: Any) -> Any:
            assert self.open.wait(30)
            return step(*args, **options)

        monkeypatch.setattr(engine._runner, "step", gated)


@pytest.fixture
def gate(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    with Engine.load(tiny_model_dir, kv_memory_bytes=4 << 20, threads=1, max_num_seqs=1) as engine:
        gate = Gate(engine, monkeypatch)
        yield gate
        gate.open.set()


def post_later(server: RunningServer, results: list[httpx.Response], **fields: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: results.append(server.post(max_tokens=1, **fields)))
    thread.start()
    return thread


def test_a_full_queue_says_so_and_others_go_on(gate: Gate) -> None:
    with running_server(gate.engine, limits=Limits(max_waiting=1)) as server:
        results: list[httpx.Response] = []
        threads = [post_later(server, results)]
        wait_until(lambda: gate.engine.stats().running == 1)
        threads.append(post_later(server, results))
        wait_until(lambda: gate.engine.waiting == 1)
        # What is refused is not looked at: neither its grammar is compiled nor its prompt encoded.
        wrong = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 5}}}
        }
        long = {"messages": [{"role": "user", "content": "word " * gate.engine.context_tokens}]}
        for fields in ({}, {"stream": True}, wrong, long):
            refused = server.post(**fields)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "queue_full"
            assert refused.json()["error"]["type"] == "rate_limit_error"
        gate.open.set()
        for thread in threads:
            thread.join()
        assert [result.status_code for result in results] == [200, 200]


def test_who_waits_too_long_is_told(gate: Gate) -> None:
    with running_server(gate.engine, limits=Limits(max_wait_s=0.3)) as server:
        results: list[httpx.Response] = []
        thread = post_later(server, results)
        wait_until(lambda: gate.engine.stats().running == 1)
        late = server.post(n=2)
        assert late.status_code == 429
        assert late.json()["error"]["code"] == "queue_timeout"
        gate.open.set()
        thread.join()
        assert results[0].status_code == 200  # it had started
        server.wait_idle()


def test_scripts_of_other_pages_need_permission(tiny_engine: Engine) -> None:
    origin = "https://chat.example"
    headers = {"origin": origin, "access-control-request-method": "POST"}
    with running_server(tiny_engine, cors_origins=[origin]) as server:
        preflight = httpx.options(server.url + "v1/chat/completions", headers=headers)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == origin
        reply = httpx.post(
            server.url + "v1/chat/completions",
            content=json.dumps(server.chat_body(max_tokens=1)),
            headers={"origin": origin},
        )
        assert reply.headers["access-control-allow-origin"] == origin
        other = httpx.get(server.url + "v1/models", headers={"origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_too_many_grammars_at_once_are_the_servers_load(
    tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "_MOST_COMPILING", 0)
    with running_server(tiny_engine) as server:
        refused = server.post(structured_outputs={"regex": "never compiled before"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "overloaded"
