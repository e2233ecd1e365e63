"""Tenants over real HTTP: who gets in, and that nothing of one tenant's cache shows to another, in either direction."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest

from duologue import Engine
from duologue.api.keys import KeyEntry, append_key, key_digest, new_key
from duologue.api.tenants import KeyFileTenants
from tests.server.conftest import RunningServer, running_server, unique

# Any two prompts of one tenant share at most this much: what the template writes, and the beginning of `unique()`.
_HEAD_TOKENS = 40
_KEYS = {name: new_key() for name in ("acme", "acme-2", "beta")}


class Client:
    """One tenant's view of the server."""

    def __init__(self, server: RunningServer, key: str) -> None:
        self.server = server
        headers = {"authorization": f"Bearer {key}"}
        self.http = httpx.Client(base_url=server.url + "v1/", headers=headers, timeout=200)

    def cached(self, content: str, **fields: Any) -> int:
        """Asks for one token; how many of the prompt's tokens came from the cache."""
        body = self.server.chat_body(content, max_tokens=1, ignore_eos=True, **fields)
        reply = self.http.post("chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        details = reply.json()["usage"]["prompt_tokens_details"]
        assert details["cached_tokens_details"] == {"memory": details["cached_tokens"]}
        return int(details["cached_tokens"])

    def lookup(self, content: str, **fields: Any) -> dict[str, Any]:
        reply = self.http.post("cache/lookup", json=self.server.chat_body(content, **fields))
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys"
    for name, key in _KEYS.items():
        append_key(file, KeyEntry(key_digest(key), name.removesuffix("-2")))
    return file


def causes_under_another_salt(client: Client) -> list[str]:
    """The causes told for a prompt that was stored under one salt and is then asked under another, and again."""
    content, salts = f"{unique()} what is a tide? " * 4, (unique(), unique())
    client.cached(content, cache_salt=salts[0])
    told = []
    for _ in range(2):
        body = client.server.chat_body(content, max_tokens=1, cache_salt=salts[1], explain_cache=True)
        told.append(client.http.post("chat/completions", json=body).json()["cache_report"]["cause"])
    return told


@pytest.fixture(scope="module")
def keyed(tiny_engine: Engine, key_file: Path) -> Iterator[RunningServer]:
    with running_server(tiny_engine, tenants=KeyFileTenants(key_file)) as server:
        yield server


@pytest.fixture
def clients(keyed: RunningServer) -> Iterator[dict[str, Client]]:
    clients = {name: Client(keyed, key) for name, key in _KEYS.items()}
    yield clients
    for client in clients.values():
        client.http.close()


def prompt(words: int = 60) -> str:
    """Text that nothing stored begins with, at the first content token already."""
    return f"{unique()} " + " ".join(
        random.Random(unique()).choices(["sun", "moon", "tide", "wind"], k=words)
    )


@pytest.mark.parametrize(
    "authorization",
    # Every process that collects the tests has keys of its own and must find the same names.
    [None, "Bearer wrong", "Basic x", "Bearer", pytest.param(f"Bearer {_KEYS['acme']}x", id="longer")],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "v1/chat/completions"),
        ("GET", "v1/models"),
        ("GET", "v1/models/x"),
        ("POST", "v1/cache/lookup"),
        ("DELETE", "v1/cache/key"),
        ("DELETE", "v1/cache"),
    ],
)
def test_without_a_valid_key_nothing_of_the_api_answers(
    keyed: RunningServer, method: str, path: str, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    response = httpx.request(method, keyed.url + path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        None,
        "invalid_api_key",
    )


@pytest.mark.parametrize("path", ["", "health", "ready", "metrics", "static/page.js"])
def test_probes_and_the_page_need_no_key(keyed: RunningServer, path: str) -> None:
    assert httpx.get(keyed.url + path).status_code == 200


def test_the_official_client_sees_its_own_errors_and_replies(keyed: RunningServer) -> None:
    with (
        openai.OpenAI(base_url=keyed.url + "v1", api_key="wrong", max_retries=0) as wrong,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        wrong.models.list()
    assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=keyed.url + "v1", api_key=_KEYS["beta"], max_retries=0) as right:
        completion = right.chat.completions.create(
            model=keyed.engine.model_name,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=2,
            prompt_cache_key="dialogue-1",
        )
    assert completion.usage is not None


@pytest.mark.parametrize(("first", "second"), [("acme", "beta"), ("beta", "acme")])
def test_equal_prompts_of_two_tenants_share_nothing(
    clients: dict[str, Client], first: str, second: str
) -> None:
    text = prompt()
    for name in (first, second):
        assert clients[name].lookup(text)["matched_tokens"] < _HEAD_TOKENS
        assert clients[name].cached(text) < _HEAD_TOKENS
        assert clients[name].cached(text) > 100
        assert clients[name].lookup(text)["matched_tokens"] > 100


def test_keys_of_one_tenant_share(clients: dict[str, Client]) -> None:
    text = prompt()
    clients["acme"].cached(text)
    assert clients["acme-2"].cached(text) > 100


def test_a_client_s_salt_narrows_and_reaches_nobody_else(clients: dict[str, Client]) -> None:
    text, salt = prompt(), unique()
    clients["acme"].cached(text)
    assert clients["acme"].cached(text, cache_salt=salt) == 0
    assert clients["acme"].cached(text, cache_salt=salt) > 100
    assert clients["acme"].cached(text) > 100
    for forged in (salt, "acme"):
        assert clients["beta"].cached(text, cache_salt=forged) == 0


def test_a_lookup_runs_nothing_and_stores_nothing(clients: dict[str, Client], keyed: RunningServer) -> None:
    text = prompt()
    before = keyed.engine.stats()
    first = clients["acme"].lookup(text, max_tokens=5, temperature=0)
    again = clients["acme"].lookup(text)
    assert first == again
    assert first["object"] == "cache.lookup"
    assert first["prompt_tokens"] == len(keyed.engine.encode_chat([{"role": "user", "content": text}]))
    assert keyed.engine.stats().requests_total == before.requests_total
    clients["acme"].cached(text)
    assert clients["acme"].lookup(text)["matched_tokens"] > 100


def test_forgetting_a_key_leaves_other_tenants_and_other_keys(clients: dict[str, Client]) -> None:
    text, other = prompt(), prompt()
    key = f"Gespräch 7/{unique()}"
    for name in ("acme", "beta"):
        clients[name].cached(text, prompt_cache_key=key)
    clients["acme"].cached(other, prompt_cache_key=key + "b")
    gone = clients["acme"].http.delete("cache/" + quote(key, safe="")).json()
    assert (gone["object"], gone["key"], gone["deleted"]) == ("cache.deleted", key, True)
    assert gone["pages"] > 0
    assert gone["tokens"] > 100
    assert clients["acme"].lookup(text)["matched_tokens"] < _HEAD_TOKENS
    assert clients["beta"].lookup(text)["matched_tokens"] > 100
    assert clients["acme"].lookup(other)["matched_tokens"] > 100
    again = clients["acme"].http.delete("cache/" + quote(key, safe="")).json()
    assert (again["deleted"], again["pages"], again["tokens"]) == (True, 0, 0)


def test_a_tenant_forgets_all_of_its_own(clients: dict[str, Client]) -> None:
    text = prompt()
    for name in ("acme", "beta"):
        clients[name].cached(text)
        clients[name].cached(text, cache_salt="apart")
    gone = clients["acme"].http.delete("cache").json()
    assert gone["key"] is None
    assert gone["tokens"] > 200
    assert clients["acme"].lookup(text)["matched_tokens"] == 0
    assert clients["acme"].lookup(text, cache_salt="apart")["matched_tokens"] == 0
    assert clients["beta"].lookup(text)["matched_tokens"] > 100
    assert clients["beta"].lookup(text, cache_salt="apart")["matched_tokens"] > 100


@pytest.mark.parametrize("raw", ["", "%FF", "a%00b", "a%0Ab", "k" * 2000])
def test_impossible_keys_are_refused_and_delete_nothing(clients: dict[str, Client], raw: str) -> None:
    text = prompt()
    clients["acme"].cached(text)
    response = clients["acme"].http.delete("cache/" + raw)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "key"
    assert clients["acme"].lookup(text)["matched_tokens"] > 100


def test_a_key_of_a_megabyte_is_refused(clients: dict[str, Client]) -> None:
    body = clients["acme"].server.chat_body("Hi", prompt_cache_key="k" * (1 << 20))
    response = clients["acme"].http.post("chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt_cache_key"


def test_a_lookup_s_body_is_checked_like_a_chat_s(clients: dict[str, Client]) -> None:
    http = clients["acme"].http
    assert http.post("cache/lookup", content=b"{").json()["error"]["code"] == "invalid_json"
    unknown = {**clients["acme"].server.chat_body(), "model": "gpt-4"}
    assert http.post("cache/lookup", json=unknown).status_code == 404


def test_timing_tells_nothing_of_another_tenant_s_prompts(clients: dict[str, Client]) -> None:
    """Time of one-token requests of beta: prompts that acme has just had, against prompts that nobody has had.

    The statistic is Mann-Whitney's U as a z score. Were both alike, one run in 16,000 exceeds 4; the control, prompts that beta
    itself has just had, must exceed it.
    """
    words, pairs = 300, 24

    def timed(text: str) -> float:
        started_s = time.perf_counter()
        clients["beta"].cached(text)
        return time.perf_counter() - started_s

    times: dict[str, list[float]] = {"nobody": [], "acme": [], "beta": []}
    order = random.Random(0)
    for _ in range(pairs):
        kinds = list(times)
        order.shuffle(kinds)
        for kind in kinds:
            text = prompt(words)
            clients["acme"].cached(text if kind == "acme" else prompt(words))
            clients["beta"].cached(text if kind == "beta" else prompt(words))
            times[kind].append(timed(text))
    assert abs(_z_score(times["acme"], times["nobody"])) < 4
    assert _z_score(times["beta"], times["nobody"]) < -4, "the control cannot tell a hit from a miss"


def _z_score(a: list[float], b: list[float]) -> float:
    """Mann-Whitney's U of a against b, standardised; negative when a tends to be smaller."""
    u = sum((x > y) + 0.5 * (x == y) for x, y in itertools.product(a, b))
    return float((u - len(a) * len(b) / 2) / (len(a) * len(b) * (len(a) + len(b) + 1) / 12) ** 0.5)


def test_a_tenant_is_told_when_another_of_its_salts_holds_the_prompt(clients: dict[str, Client]) -> None:
    assert causes_under_another_salt(clients["acme"]) == ["salt", "none"]
