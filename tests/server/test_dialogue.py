"""Dialogues over real HTTP: replies that come back hit the cache, are continued where they stopped, and misses are explained."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from duologue import Engine
from duologue.api.keys import KeyEntry, append_key, key_digest, new_key
from duologue.api.tenants import KeyFileTenants
from duologue.dialogue.encoded_dialogue import EncodedDialogue
from tests.engine.base_case import base_model
from tests.server.conftest import RunningServer, running_server, unique

Messages = list[dict[str, str]]


def ask(server: RunningServer, messages: Messages, **fields: Any) -> dict[str, Any]:
    body = server.chat_body(**{"max_tokens": 40, "ignore_eos": True, **fields}) | {"messages": messages}
    response = httpx.post(server.url + "v1/chat/completions", json=body, timeout=200)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def matched(server: RunningServer, messages: Messages, **fields: Any) -> int:
    body = server.chat_body(**fields) | {"messages": messages}
    return int(httpx.post(server.url + "v1/cache/lookup", json=body, timeout=200).json()["matched_tokens"])


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
    assert response.json()["error"]["code"] == "invalid_value"


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
    # Without keys nobody vouches that two salts are of one user: what one holds is no business of the other.
    assert report(edited, cache_salt=unique())["cause"] == "new"


def test_a_miss_in_a_long_message_is_explained_without_holding_up_the_event_loop(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def locate(prompt: EncodedDialogue, token: int, of: Any = EncodedDialogue.locate) -> Any:
        threads.append(threading.current_thread())
        return of(prompt, token)

    monkeypatch.setattr(EncodedDialogue, "locate", locate)
    content = f"{unique()} " + "What is a tide? " * 100
    ask(served, [user(content)])
    reply = ask(served, [user(content + "Tell me.")], explain_cache=True)
    assert reply["usage"]["prompt_tokens"] > 1024
    divergence = reply["cache_report"]["divergence"]
    assert (divergence["message"], divergence["character"]) == (0, len(content))
    assert threads
    assert served.thread not in threads


def test_an_explanation_never_shows_another_tenant_s_text(tiny_engine: Any, tmp_path: Any) -> None:
    keys = {name: new_key() for name in ("acme", "beta")}
    for name, key in keys.items():  # of tenants that no other test has sent anything for
        append_key(tmp_path / "keys", KeyEntry(key_digest(key), f"{name}-{unique()}".replace(" ", "-")))
    with running_server(tiny_engine, tenants=KeyFileTenants(tmp_path / "keys")) as server:

        def report(name: str, content: str, **fields: Any) -> dict[str, Any]:
            body = server.chat_body(content, max_tokens=1, explain_cache=True, **fields)
            headers = {"authorization": f"Bearer {keys[name]}"}
            reply = httpx.post(server.url + "v1/chat/completions", json=body, headers=headers, timeout=200)
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
    lines = httpx.post(served.url + "v1/chat/completions", json=body, timeout=200).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [("cache_report" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["cache_report"]["prompt_tokens"] > 0
    assert "cache_report" not in served.post(max_tokens=1).json()


def test_a_dialogue_longer_than_the_context_goes_on_and_its_cut_stays_still(served: RunningServer) -> None:
    salt = unique()
    messages = [{"role": "system", "content": "You are a lighthouse keeper."}]
    fields = {
        "truncation": "auto",
        "truncation_step": 700,
        "truncation_reserve": 200,
        "cache_salt": salt,
        "max_tokens": 20,
    }
    moved = computed_tokens = prompt_tokens = 0
    for turn in range(60):
        messages.append(user(f"Turn {turn}: " + "what does the sea do now? " * 4))
        reply = ask(served, messages, **fields)
        usage = reply["usage"]
        assert usage["prompt_tokens"] + 20 <= served.engine.context_tokens
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        moved += turn > 0 and cached < usage["prompt_tokens"] / 2
        computed_tokens += usage["prompt_tokens"] - cached
        prompt_tokens += usage["prompt_tokens"]
        messages.append(assistant(text_of(reply)))
    total_tokens = len(served.engine.encode_chat(messages))
    assert total_tokens > served.engine.context_tokens + 2 * 700
    assert 2 <= moved <= total_tokens // 700
    assert computed_tokens < prompt_tokens / 5
    body = served.chat_body(cache_salt=salt) | {"messages": messages[:-1]}
    refused = httpx.post(served.url + "v1/chat/completions", json=body, timeout=200)
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_sizes_that_contradict_the_context_are_refused(served: RunningServer) -> None:
    for fields in ({"truncation_reserve": 10**6}, {"truncation_step": 10**6}):
        response = served.post(truncation="auto", **fields)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "truncation"
        assert response.json()["error"]["code"] == "invalid_value"


def test_what_is_frozen_into_the_history_stays_in_the_cache(served: RunningServer) -> None:
    fields = {"prompt_cache_key": unique(), "cache_salt": unique()}
    messages: Messages = []
    ends = 0
    for turn in range(4):
        messages.append(user(f"Turn {turn}: what now?"))
        lore = [{"role": "system", "content": f"It is day {turn} of the storm."}]
        looked = matched(served, messages, volatile=lore, **fields)
        reply = ask(served, messages, volatile=lore, temperature=0, **fields)
        usage = reply["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == looked >= ends
        ends = usage["total_tokens"] - 1
        messages.append(assistant(text_of(reply)))
    # Without its key the dialogue is what the client sends.
    plain = ask(served, messages[:-1], cache_salt=fields["cache_salt"])["usage"]["prompt_tokens"]
    insert_tokens = len(served.engine.encode_chat(lore)) - len(served.engine.encode_chat([]))
    # At least three of four: replies with control tokens, which only their own prompt gets back, count differently.
    assert usage["prompt_tokens"] >= plain + 3 * insert_tokens


def test_an_insert_that_has_passed_is_no_edit(served: RunningServer) -> None:
    salt, tail = unique(), [{"role": "system", "content": "Answer in one sentence.", "placement": "tail"}]
    messages = [user(f"{unique()} what is a tide?")]

    def cause(messages: Messages, **fields: Any) -> Any:
        reply = ask(served, messages, explain_cache=True, cache_salt=salt, max_tokens=1, **fields)
        return reply["cache_report"]["cause"]

    assert cause(messages, volatile=tail) == "new"
    assert cause(messages, volatile=tail) == "none"
    following = [*messages, assistant("The sea, breathing."), user("And the moon?")]
    assert cause(following) == "volatile"
    edited = [*messages, assistant("The sea, sleeping."), following[-1]]
    assert cause(edited) == "edited"


def test_inserts_are_checked(served: RunningServer) -> None:
    lore = [{"role": "system", "content": "x"}]
    without_key = served.post(volatile=lore)
    assert (without_key.status_code, without_key.json()["error"]["param"]) == (400, "volatile")
    assert without_key.json()["error"]["code"] == "invalid_value"
    wrong = served.post(volatile=[{**lore[0], "placement": "top"}], prompt_cache_key="k")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "volatile[0].placement")
    assert served.post(volatile=[{**lore[0], "placement": "tail"}], max_tokens=1).status_code == 200


@pytest.mark.parametrize("whole_tenant", [False, True])
def test_what_is_forgotten_while_it_runs_is_not_kept_when_it_ends(
    served: RunningServer, whole_tenant: bool
) -> None:
    key, content = unique(), unique() + " " + "What is a tide? " * 20
    body = served.chat_body(content, prompt_cache_key=key, stream=True, max_tokens=300, ignore_eos=True)
    path = "v1/cache" if whole_tenant else f"v1/cache/{key}"
    text = ""
    with httpx.stream("POST", served.url + "v1/chat/completions", json=body, timeout=200) as response:
        for line in response.iter_lines():
            if not text and line.startswith("data: {"):
                assert httpx.delete(served.url + path, timeout=200).json()["deleted"]
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    served.wait_idle()
    messages = [user(content), assistant(text), user("And then?")]
    assert matched(served, messages) < 40


def test_reordered_and_rewritten_histories_are_clean_misses(served: RunningServer) -> None:
    """Whatever the cache holds, a greedy reply is that of a salt that holds nothing."""
    turns = [user(f"{unique()} what is a tide?"), assistant("The sea, breathing."), user("And the moon?")]
    ask(served, turns)
    histories = [
        [turns[2], turns[1], turns[0]],
        [turns[0], {**turns[1], "content": "The sea, sleeping."}, turns[2]],
        [turns[0], turns[2]],
        [turns[0], turns[1], turns[1], turns[2]],
        [{**turn, "content": turn["content"][:-1]} for turn in turns],
    ]
    for messages in histories * 2:
        warm = text_of(ask(served, messages, temperature=0))
        assert warm == text_of(ask(served, messages, temperature=0, cache_salt=unique()))


def test_a_model_without_a_chat_template_is_served_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = base_model(tmp_path / "base")
    with (
        Engine.load(folder, kv_memory_bytes=4 << 20, threads=1) as engine,
        running_server(engine) as server,
    ):
        reply = server.post(temperature=0, max_tokens=16, stop=["never said"]).json()["choices"][0]
        assert reply["message"]["content"]
        assert engine.template.stops
    warnings = [record.message for record in caplog.records if "no chat template" in record.message]
    assert len(warnings) == 1
    assert "'User:'" in warnings[0]
