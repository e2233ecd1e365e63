"""Stopping: readiness goes first, running replies finish, the rest is bounded by the drain's time."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from duologue import Engine
from tests.server.conftest import RunningServer, running_server, wait_until


class Stream(threading.Thread):
    """Reads a streamed reply in the background."""

    def __init__(self, server: RunningServer, **fields: Any) -> None:
        super().__init__()
        self._url = server.url + "v1/chat/completions"
        self._body = server.chat_body(stream=True, ignore_eos=True, **fields)
        self.events: list[str] = []
        self.start()
        wait_until(lambda: len(self.events) > 1)

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
            self.events.extend(line[6:] for line in response.iter_lines() if line)


def test_a_drain_lets_streams_finish_and_refuses_new_ones(tiny_engine: Engine) -> None:
    with running_server(tiny_engine) as served:
        with httpx.Client(timeout=60) as kept_alive:
            assert kept_alive.get(served.url + "ready").status_code == 200
            stream = Stream(served, max_tokens=600)
            served.server.stop()
            wait_until(lambda: kept_alive.get(served.url + "ready").status_code == 503)
            assert stream.is_alive(), "the reply was over before the drain could be seen"
            assert kept_alive.get(served.url + "health").status_code == 200
            refused = kept_alive.post(served.url + "v1/chat/completions", json=served.chat_body())
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "shutting_down"
            assert "retry-after" in refused.headers
            stream.join(60)
        assert stream.events[-1] == "[DONE]"
        assert json.loads(stream.events[-2])["choices"][0]["finish_reason"] == "length"
        served.thread.join(30)
        assert not served.thread.is_alive()
        with pytest.raises(httpx.ConnectError):
            httpx.get(served.url + "health")


def test_a_drain_ends_replies_that_take_too_long(tiny_engine: Engine) -> None:
    with running_server(tiny_engine, drain_timeout_s=0.05) as served:
        stream = Stream(served)
        served.server.stop()
        served.thread.join(30)
        assert not served.thread.is_alive()
        stream.join(30)
        error = json.loads(stream.events[-1])["error"]
        assert (error["type"], error["code"]) == ("server_error", "shutting_down")
        served.wait_idle()


def test_a_second_stop_does_not_wait(tiny_engine: Engine) -> None:
    with running_server(tiny_engine, drain_timeout_s=600) as served:
        stream = Stream(served)
        started_s = time.monotonic()
        served.server.stop()
        served.server.stop()
        served.thread.join(30)
        assert time.monotonic() - started_s < 10
        stream.join(30)
        served.wait_idle()


def test_an_idle_server_stops_at_once(tiny_engine: Engine) -> None:
    with running_server(tiny_engine, drain_timeout_s=600) as served:
        started_s = time.monotonic()
        served.server.stop()
        served.thread.join(30)
        assert time.monotonic() - started_s < 5


def test_a_request_that_never_arrives_whole_is_dropped_without_a_traceback(
    tiny_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with running_server(tiny_engine, drain_timeout_s=0.2) as served:
        address = httpx.URL(served.url)
        with socket.create_connection((address.host, address.port or 80), timeout=60) as client:
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            )
            time.sleep(0.2)  # until the server waits for the rest
            served.server.stop()
            served.thread.join(30)
            assert not served.thread.is_alive()
    assert [record for record in caplog.records if record.exc_info] == []
