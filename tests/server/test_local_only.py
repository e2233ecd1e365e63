"""A server without keys on this machine is not open to the web pages that a browser on it shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from duologue import Engine
from duologue.api.tenants import KeyFileTenants
from tests.server.conftest import RunningServer, running_server

_ALLOWED = "https://chat.example"


@pytest.fixture(scope="module")
def local(tiny_engine: Engine) -> Iterator[RunningServer]:
    with running_server(tiny_engine, cors_origins=[_ALLOWED], host="mybox") as server:
        yield server


def status_of(server: RunningServer, **headers: str) -> int:
    response = httpx.post(server.url + "tokenize", content=b'{"prompt": "a"}', headers=headers)
    if response.status_code == 403:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == ("origin_not_allowed" if "origin" in headers else "host_not_allowed")
    return response.status_code


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.3.2.1", "[::1]:80", "mybox:1", "a.localhost"]
)
def test_names_of_this_machine(local: RunningServer, host: str) -> None:
    assert status_of(local, host=host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "[", "10.0.0.1"]
)
def test_names_of_others(local: RunningServer, host: str) -> None:
    assert status_of(local, host=host) == 403
    assert httpx.get(local.url, headers={"host": host}).status_code == 403


def test_pages(local: RunningServer) -> None:
    own = urlsplit(local.url)
    assert status_of(local, origin=f"http://{own.netloc}") == 200
    assert status_of(local, origin=_ALLOWED) == 200
    for origin in ("https://evil.example", "null", "http://localhost:1", f"ftp://{own.netloc}"):
        plain = {"content-type": "text/plain"}
        assert status_of(local, origin=origin, **plain) == 403


def test_with_keys_or_when_it_is_meant(tiny_engine: Engine, tmp_path: Path) -> None:
    headers = {"host": "proxy.example", "origin": "https://proxy.example"}
    with running_server(tiny_engine, any_host=True) as server:
        assert status_of(server, **headers) == 200
    keys = tmp_path / "keys"
    keys.write_text("0" * 64 + " ada\n")
    with running_server(tiny_engine, tenants=KeyFileTenants(keys)) as server:
        assert status_of(server, **headers) == 401
