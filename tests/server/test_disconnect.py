"""A client that goes away stops its generation, and its pages come back."""

from __future__ import annotations

import json
import socket
import struct
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.conftest import RunningServer, wait_until


def raw_request(served: RunningServer, *, stream: bool) -> socket.socket:
    """A connection on which a reply of the whole context has been asked for."""
    address = urlsplit(served.url)
    body = json.dumps(served.chat_body(stream=stream, ignore_eos=True)).encode()
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_leaving_stops_the_generation(served: RunningServer, stream: bool, reset: bool) -> None:
    before = served.engine.stats()
    connection = raw_request(served, stream=stream)
    wait_until(lambda: served.engine.stats().completion_tokens_total > before.completion_tokens_total)
    if stream:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    served.wait_idle()
    after = served.engine.stats()
    assert after.aborted_total == before.aborted_total + 1


def test_leaving_does_not_disturb_others(served: RunningServer) -> None:
    fields = {"seed": 5, "max_tokens": 60, "ignore_eos": True}
    alone = served.post(**fields).json()["choices"][0]["message"]["content"]
    leavers = [raw_request(served, stream=True) for _ in range(4)]
    with httpx.Client(timeout=60) as client:
        body = served.chat_body(**fields, stream=True)
        with client.stream("POST", served.url + "v1/chat/completions", json=body) as response:
            text = ""
            for line in response.iter_lines():
                if leavers:
                    leavers.pop().close()
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    assert text == alone
    served.wait_idle()
