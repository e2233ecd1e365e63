"""Dialogues over real HTTP: replies that come back hit the cache, are continued where they stopped, and misses are explained."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from duologue.api.keys import KeyEntry, append_key, key_digest, new_key
from duologue.api.tenants import KeyFileTenants
from tests.server.conftest import RunningServer, running_server, unique

Messages = list[dict[str, str]]


def ask(server: RunningServer, messages: Messages, **fields: Any) -> dict[str, Any]:
    body = server.chat_body(**{"max_tokens": 40, "ignore_eos": True, **fields}) | {"messages": messages}
    response = httpx.post(server.url + "v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def matched(server: RunningServer, messages: Messages, **fields: Any) -> int:
    body = server.chat_body(**fields) | {"messages": messages}
    return int(httpx.post(server.url + "v1/cache/lookup", json=body).json()["matched_tokens"])


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_reply_that_comes_back_is_found_to_its_last_token(served: RunningServer, trimmed: bool) -> None:
    """A random model's replies are hardly ever spelled as the tokenizer would."""
    messages = [user(unique())]
    for seed in range(5):
        reply = ask(served, messages, temperature=1.2, seed=seed)
        usage = reply["usage"]
        text = text_of(reply)
        messages = [*messages, assistant(text.strip() if trimmed else text), user("And then?")]
        # The last token of a reply is sampled but never computed.
        assert matched(served, messages) >= usage["total_tokens"] - 1


def test_continuing_a_reply_gives_what_it_would_have_been(served: RunningServer) -> None:
    messages = [user(unique())]
    whole = text_of(ask(served, messages, temperature=0, max_tokens=40, cache_salt=unique()))
    part = ask(served, messages, temperature=0, max_tokens=20)
    open_reply = [*messages, assistant(text_of(part))]
    rest = ask(served, open_reply, temperature=0, max_tokens=20, continue_final_message=True)
    assert text_of(part) + text_of(rest) == whole
    assert rest["usage"]["prompt_tokens"] == part["usage"]["total_tokens"]
    assert rest["usage"]["prompt_tokens_details"]["cached_tokens"] >= part["usage"]["total_tokens"] - 1
    # The two halves are one reply from now on.
    following = [*messages, assistant(whole), user("And then?")]
    assert matched(served, following) >= rest["usage"]["total_tokens"] - 1


def test_only_a_reply_can_be_continued(served: RunningServer) -> None:
    response = served.post(continue_final_message=True)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "continue_final_message"


def test_a_miss_is_explained(served: RunningServer) -> None:
    system = {"role": "system", "content": f"You are {unique()}, a lighthouse keeper."}
    first = [system, user("What is a tide? " * 8)]
    salt = unique()

    def report(messages: Messages, cache_salt: str = salt) -> dict[str, Any]:
        made: dict[str, Any] = ask(served, messages, explain_cache=True, cache_salt=cache_salt)[
            "cache_report"
        ]
        assert made["matched_tokens"] + made["recomputed_tokens"] == made["prompt_tokens"]
        return made

    new = report(first)
    assert (new["cause"], new["matched_tokens"]) == ("new", 0)
    assert new["divergence"]["stored_text"] is None
    again = report(first)
    assert (again["cause"], again["recomputed_tokens"], again["divergence"]) == ("none", 1, None)
    second = [*first, assistant("The sea, patiently breathing."), user("And then?")]
    report(second)
    edited = [*first, assistant("The sea, proudly breathing."), second[-1]]
    found = report(edited)
    divergence = found["divergence"]
    assert found["cause"] == "edited"
    assert 0 < found["matched_tokens"] <= divergence["token"] < found["prompt_tokens"]
    assert (divergence["message"], divergence["where"]) == (
        2,
        f"messages[2].content, character {divergence['character']}",
    )
    assert 0 < divergence["character"] <= len("The sea, p")
    assert "roudly breathing" in divergence["prompt_text"]
    assert "atiently breathing" in divergence["stored_text"]
    other = report([{**system, "content": system["content"].replace("keeper", "painter")}, first[1]])
    assert (other["cause"], other["divergence"]["message"]) == ("new", 0)
    assert report(edited, cache_salt=unique())["cause"] == "salt"


def test_an_explanation_never_shows_another_tenant_s_text(tiny_engine: Any, tmp_path: Any) -> None:
    keys = {name: new_key() for name in ("acme", "beta")}
    for name, key in keys.items():
        append_key(tmp_path / "keys", KeyEntry(key_digest(key), name))
    with running_server(tiny_engine, tenants=KeyFileTenants(tmp_path / "keys")) as server:

        def report(name: str, content: str, **fields: Any) -> dict[str, Any]:
            body = server.chat_body(content, max_tokens=1, explain_cache=True, **fields)
            headers = {"authorization": f"Bearer {keys[name]}"}
            reply = httpx.post(server.url + "v1/chat/completions", json=body, headers=headers, timeout=60)
            made: dict[str, Any] = reply.json()["cache_report"]
            return made

        for fields in ({}, {"cache_salt": "s"}):
            word = unique()
            report("acme", f"{word} secret plan")
            seen = report("beta", f"{word} secret plan", **fields)
            # As for a prompt that nobody has ever sent: the cause, too, must not tell that somebody has.
            assert (seen["cause"], seen["matched_tokens"]) == ("new", 0)
            assert seen["divergence"]["stored_text"] is None


def test_the_explanation_comes_with_the_end_of_a_stream(served: RunningServer) -> None:
    body = served.chat_body(unique(), stream=True, explain_cache=True, max_tokens=3, ignore_eos=True)
    lines = httpx.post(served.url + "v1/chat/completions", json=body, timeout=60).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [("cache_report" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["cache_report"]["prompt_tokens"] > 0
    assert "cache_report" not in served.post(max_tokens=1).json()
