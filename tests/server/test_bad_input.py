"""Bad input over real HTTP: one clear error each, in OpenAI's shape, and the server keeps serving."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.conftest import RunningServer

_CHAT = "/v1/chat/completions"


@pytest.fixture
def client(served: RunningServer) -> Iterator[httpx.Client]:
    """Checks after each test that the server still answers others, and holds nothing."""
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client
        body = served.chat_body(max_tokens=2, ignore_eos=True)
        assert client.post(_CHAT, json=body).json()["usage"]["completion_tokens"] == 2
        served.wait_idle()


def error_of(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"not json", "invalid_json"),
        (b'{"model": "\xc3\x28"}', "invalid_utf8"),
        (b'["model"]', "invalid_json"),
        (b"{}", "missing_required_parameter"),
    ],
)
def test_broken_bodies(client: httpx.Client, body: bytes, code: str) -> None:
    response = client.post(_CHAT, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["code"] == code


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ('"temperature": NaN', "temperature"),
        ('"temperature": -1', "temperature"),
        ('"top_p": Infinity', "top_p"),
        ('"top_k": -2', "top_k"),
        ('"max_tokens": -1', "max_tokens"),
        ('"seed": 1.5', "seed"),
        ('"stop": [""]', "stop[0]"),
        ('"n": 1000', "n"),
        ('"tools": [{}]', "tools[0].type"),
        ('"tools": [{"type": "function", "function": {"name": "f"}}]', "tools"),
        ('"top_logprobs": 2', "top_logprobs"),
        ('"logit_bias": {"999999": 1}', "logit_bias"),
        ('"response_format": {"type": "json_schema"}', "response_format"),
    ],
)
def test_bad_parameters(client: httpx.Client, served: RunningServer, fields: str, param: str) -> None:
    body = json.dumps(served.chat_body())[:-1] + f", {fields}}}"
    response = client.post(_CHAT, content=body.encode())
    assert response.status_code == 400
    error = error_of(response)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"]


def test_an_unknown_model(client: httpx.Client, served: RunningServer) -> None:
    response = client.post(_CHAT, json={**served.chat_body(), "model": "gpt-4"})
    assert response.status_code == 404
    error = error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert served.engine.model_name in error["message"]
    assert error_of(client.get("/v1/models/gpt-4/x"))["code"] == "model_not_found"


def test_a_prompt_longer_than_the_context(client: httpx.Client, served: RunningServer) -> None:
    response = client.post(_CHAT, json=served.chat_body(content="word " * served.engine.context_tokens))
    assert response.status_code == 400
    error = error_of(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert f"{served.engine.context_tokens}" in error["message"].replace(",", "")


@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_first_token_are_not_streamed(
    client: httpx.Client, served: RunningServer, stream: bool
) -> None:
    body = served.chat_body(content="word " * served.engine.context_tokens, stream=stream)
    assert error_of(client.post(_CHAT, json=body))["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/chat/completions/", "/v1", "/static/../secrets"])
def test_unknown_paths(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert error_of(response)["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", _CHAT, "POST"), ("DELETE", _CHAT, "POST"), ("POST", "/v1/models", "GET"), ("PUT", "/", "GET")],
)
def test_wrong_methods(client: httpx.Client, method: str, path: str, allowed: str) -> None:
    response = client.request(method, path)
    assert response.status_code == 405
    assert allowed in response.headers["allow"]
    assert error_of(response)["code"] == "method_not_supported"


def test_a_body_over_the_limit(client: httpx.Client, served: RunningServer) -> None:
    big = b" " * (9 * 1024 * 1024)
    response = client.post(_CHAT, content=big)
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


def test_a_client_that_sends_on_still_sees_that_its_body_is_too_large(served: RunningServer) -> None:
    """As one that does not read before it has written everything: a closed connection would be all that it sees."""
    host, port = served.url.removeprefix("http://").rstrip("/").split(":")
    body = b" " * (9 * 1024 * 1024)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST {_CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert b"request_too_large" in answer


def test_a_message_that_cannot_fit_is_refused_unread(client: httpx.Client, served: RunningServer) -> None:
    response = client.post(_CHAT, json=served.chat_body("x y " * 1_000_000))
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    # What was encoded first is refused for all `messages` together.
    assert error_of(response)["param"] == "messages[0].content"


def test_long_names_are_not_sent_back_whole(client: httpx.Client, served: RunningServer) -> None:
    for body in (
        {**served.chat_body("x"), "model": "m" * 100_000},
        {**served.chat_body("x"), "n" * 100_000: 1},
    ):
        response = client.post(_CHAT, json=body)
        assert 400 <= response.status_code < 500
        assert len(response.content) < 2000


def test_a_body_over_the_limit_without_a_length(client: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(9 * 16):
            yield b" " * 65536

    try:
        response = client.post(_CHAT, content=pieces())
    except httpx.WriteError:
        return  # the server answered and closed while we were still sending
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"


def test_bytes_that_are_not_http(client: httpx.Client, served: RunningServer) -> None:
    address = urlsplit(served.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400")


def test_a_client_that_leaves_in_the_middle_of_its_request(
    client: httpx.Client, served: RunningServer
) -> None:
    address = urlsplit(served.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
