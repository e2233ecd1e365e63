"""Warming: personas are in the cache before the server calls itself ready, and a bad file is named."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from duologue import Engine
from duologue.api.salts import cache_salt
from duologue.api.tenants import ANONYMOUS
from duologue.server.warm import PersonaError, Warmer, read_personas
from tests.server.conftest import running_server, unique, wait_until

_NO_KEYS = frozenset((ANONYMOUS,))
_SYSTEM = {"role": "system", "content": "You are a lighthouse keeper who answers in few words. " * 4}


def write(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({"messages": [_SYSTEM], **fields}))
    return path


def test_the_first_user_of_a_persona_finds_it_warm(tiny_engine: Engine, tmp_path: Path) -> None:
    salt = unique()
    personas = read_personas([write(tmp_path / "keeper.json", cache_salt=salt, name="Keeper")], _NO_KEYS)
    with running_server(tiny_engine, warmer=Warmer(tiny_engine, personas)) as server:
        assert httpx.get(server.url + "ready").status_code == 200
        body = server.chat_body(cache_salt=salt, max_tokens=1, ignore_eos=True)
        body["messages"].insert(0, _SYSTEM)
        usage = httpx.post(server.url + "v1/chat/completions", json=body, timeout=200).json()["usage"]
        persona_tokens = len(
            tiny_engine.template.encode_chat(tiny_engine.tokenizer, [_SYSTEM], add_generation_prompt=False)
        )
        assert usage["prompt_tokens_details"]["cached_tokens"] >= persona_tokens > 50


def test_not_ready_while_warming_but_alive(tiny_engine: Engine) -> None:
    class Slow(Warmer):
        def __init__(self) -> None:
            super().__init__(tiny_engine, [])
            self.go_on = threading.Event()

        def run(self) -> int:
            assert self.go_on.wait(30)
            return super().run()

    warmer = Slow()

    def look(url: str) -> None:
        response = httpx.get(url + "ready")
        seen.append((response.status_code, response.json()["status"], httpx.get(url + "health").status_code))

    seen: list[tuple[int, str, int]] = []
    with running_server(tiny_engine, wait=False, warmer=warmer) as server:
        wait_until(lambda: answers(server.url))
        look(server.url)
        warmer.go_on.set()
        wait_until(lambda: httpx.get(server.url + "ready").status_code == 200)
    assert seen == [(503, "warming", 200)]


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "health").status_code == 200
    except httpx.ConnectError:
        return False


def test_a_server_can_be_stopped_while_it_warms(tiny_engine: Engine, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.json", cache_salt=unique()) for n in range(40)]
    warmer = Warmer(tiny_engine, read_personas(paths, _NO_KEYS))
    with running_server(tiny_engine, wait=False, warmer=warmer) as server:
        wait_until(lambda: answers(server.url))
        server.server.stop()
        server.thread.join(30)
        assert not server.thread.is_alive()
    wait_until(lambda: tiny_engine.stats().running + tiny_engine.stats().waiting == 0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "Missing required parameter: 'messages'"),
        (b'{"messages": []}', "'messages'"),
        (b'{"messages": [{"role": "king", "content": "x"}]}', "'messages[0].role'"),
        (b'{"messages": [{"role": "system", "content": "x"}], "mood": 1}', "'mood'"),
        (b'{"messages": [{"role": "system", "content": "x"}], "tenant": "acme"}', "no API keys"),
        (b"\xff", "not valid UTF-8"),
    ],
)
def test_files_that_are_wrong_are_named(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "persona.json"
    path.write_bytes(content)
    with pytest.raises(PersonaError) as caught:
        read_personas([path], _NO_KEYS)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PersonaError, match=r"nothing\.json' cannot be read: no such file"):
        read_personas([tmp_path / "nothing.json"], _NO_KEYS)


def test_with_keys_a_persona_belongs_to_a_tenant(tmp_path: Path) -> None:
    tenants = frozenset(("acme",))
    (persona,) = read_personas([write(tmp_path / "a.json", tenant="acme", cache_salt="s")], tenants)
    assert (persona.scope.tenant, persona.scope.salt) == ("acme", cache_salt("acme", "s"))
    assert persona.scope.retention_s > 0
    with pytest.raises(PersonaError, match="names no 'tenant'"):
        read_personas([write(tmp_path / "b.json")], tenants)
    with pytest.raises(PersonaError, match="no API key belongs to the tenant 'beta'"):
        read_personas([write(tmp_path / "c.json", tenant="beta")], tenants)


def test_a_persona_that_the_model_cannot_take_stops_the_server(tiny_engine: Engine, tmp_path: Path) -> None:
    long = {"role": "system", "content": "word " * tiny_engine.context_tokens}
    path = write(tmp_path / "long.json", messages=[long])
    with pytest.raises(PersonaError, match=r"long\.json.*context"):
        Warmer(tiny_engine, read_personas([path], _NO_KEYS)).run()
