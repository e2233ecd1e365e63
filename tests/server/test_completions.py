"""Chat completions over real HTTP: whole and streamed replies agree with the engine and with each other."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from duologue.engine.sampling_params import SamplingParams
from tests.server.conftest import RunningServer, unique


def stream(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed reply, framing checked."""
    body = server.chat_body(stream=True, **fields)
    response = httpx.post(server.url + "v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])
    return [json.loads(event[6:]) for event in events[:-2]]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


def test_a_whole_greedy_reply_is_the_engine_s(served: RunningServer) -> None:
    messages = served.chat_body()["messages"]
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    expected = served.engine.generate(messages, params)
    reply = served.post(temperature=0, max_tokens=24, ignore_eos=True, cache_salt=unique()).json()
    choice = reply["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert choice["finish_reason"] == "length"
    assert reply["usage"] == {
        "prompt_tokens": len(served.engine.encode_chat(messages)),
        "completion_tokens": 24,
        "total_tokens": len(served.engine.encode_chat(messages)) + 24,
        "prompt_tokens_details": {"cached_tokens": 0, "cached_tokens_details": {"memory": 0}},
    }
    assert reply["object"] == "chat.completion"
    assert reply["model"] == served.engine.model_name


@pytest.mark.parametrize("temperature", [0, 1.3])
def test_streamed_and_whole_replies_are_equal(served: RunningServer, temperature: float) -> None:
    fields = {"temperature": temperature, "seed": 11, "max_tokens": 40, "ignore_eos": True}
    whole = served.post(**fields).json()["choices"][0]["message"]["content"]
    chunks = stream(served, **fields)
    assert text_of(chunks) == whole
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_usage_comes_last_and_only_if_asked_for(served: RunningServer) -> None:
    fields = {"max_tokens": 5, "ignore_eos": True, "cache_salt": unique()}
    assert not any("usage" in chunk for chunk in stream(served, **{**fields, "cache_salt": unique()}))
    chunks = stream(served, **fields, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    details = {"cached_tokens": 0, "cached_tokens_details": {"memory": 0}}
    assert chunks[-1]["usage"]["prompt_tokens_details"] == details
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_a_stop_string_ends_the_reply_and_does_not_show(served: RunningServer) -> None:
    fields = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
    text = served.post(**fields).json()["choices"][0]["message"]["content"]
    middle = len(text) // 2
    stop = text[middle : middle + 4]
    kept = text[: text.index(stop)]
    assert stop
    whole = served.post(**fields, stop=[stop, "never appears anywhere"]).json()["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == (kept, "stop")
    chunks = stream(served, **fields, stop=stop)
    assert text_of(chunks) == kept
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_seeds_repeat_and_differ(served: RunningServer) -> None:
    def reply(seed: int) -> str:
        response = served.post(seed=seed, temperature=1.5, max_tokens=30, ignore_eos=True)
        return str(response.json()["choices"][0]["message"]["content"])

    assert reply(3) == reply(3)
    assert reply(3) != reply(4)


def test_many_clients_at_once_get_the_same_as_alone(served: RunningServer) -> None:
    def reply(index: int) -> str:
        fields: dict[str, Any] = {
            "content": f"Number {index}",
            "seed": index,
            "max_tokens": 20,
            "ignore_eos": True,
        }
        if index % 2:
            return text_of(stream(served, **fields))
        return str(served.post(**fields).json()["choices"][0]["message"]["content"])

    alone = [reply(index) for index in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(reply, range(12))) == alone
    served.wait_idle()


def test_a_long_chat_is_encoded_off_the_event_loop(served: RunningServer) -> None:
    # Longer than what is encoded in place; too long for the context, so the answer is a refusal.
    response = served.post(content="word " * 4000)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_models_and_probes(served: RunningServer) -> None:
    name = served.engine.model_name
    entry = httpx.get(served.url + "v1/models").json()["data"][0]
    assert (entry["id"], entry["context_tokens"]) == (name, served.engine.context_tokens)
    assert httpx.get(served.url + f"v1/models/{name}").json() == entry
    for path in ("health", "ready"):
        assert httpx.get(served.url + path).status_code == 200


def test_cross_origin_requests_get_no_permission(served: RunningServer) -> None:
    headers = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    preflight = httpx.options(served.url + "v1/chat/completions", headers=headers)
    assert preflight.status_code == 403
    assert not [name for name in preflight.headers if name.startswith("access-control")]
