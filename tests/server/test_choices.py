"""Several choices, log-probabilities and the other fields of sampling, over real HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.conftest import RunningServer, unique
from tests.server.test_completions import stream


def choices_of(served: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    reply = served.post(**{"ignore_eos": True, **fields})
    assert reply.status_code == 200, reply.text
    choices: list[dict[str, Any]] = reply.json()["choices"]
    return choices


def test_choices_differ_share_a_prompt_and_repeat(served: RunningServer) -> None:
    fields = {"n": 3, "seed": 5, "temperature": 1.2, "max_tokens": 12, "cache_salt": unique()}
    choices = choices_of(served, **fields)
    texts = [choice["message"]["content"] for choice in choices]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert [c["message"]["content"] for c in choices_of(served, **fields)] == texts
    # The first one is what a request for one gets.
    assert choices_of(served, **{**fields, "n": 1})[0]["message"]["content"] == texts[0]
    usage = served.post(ignore_eos=True, **fields).json()["usage"]
    one = served.post(ignore_eos=True, **{**fields, "n": 1}).json()["usage"]
    assert usage["completion_tokens"] == 36
    assert usage["prompt_tokens"] == one["prompt_tokens"]


def test_streamed_choices_come_interleaved_and_complete(served: RunningServer) -> None:
    fields = {"n": 3, "seed": 5, "temperature": 1.2, "max_tokens": 12, "ignore_eos": True}
    texts = [choice["message"]["content"] for choice in choices_of(served, **fields)]
    chunks = stream(served, **fields)
    streamed = [""] * 3
    for chunk in chunks:
        (choice,) = chunk["choices"]
        streamed[choice["index"]] += choice["delta"].get("content") or ""
    assert streamed == texts
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"] == "length"]
    assert sorted(ends) == [0, 1, 2]
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert order.index(2) < len(order) - 1 - order[::-1].index(0)


def test_a_leaving_client_stops_all_its_choices(served: RunningServer) -> None:
    body = served.chat_body(n=4, max_tokens=1500, ignore_eos=True, stream=True)
    with httpx.stream("POST", served.url + "v1/chat/completions", json=body, timeout=60) as response:
        next(response.iter_bytes())
    served.wait_idle()


def test_log_probabilities(served: RunningServer) -> None:
    fields = {"temperature": 0, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    (choice,) = choices_of(served, **fields)
    entries = choice["logprobs"]["content"]
    assert len(entries) == 6
    for entry in entries:
        likeliest = [top["logprob"] for top in entry["top_logprobs"]]
        assert likeliest == sorted(likeliest, reverse=True)
        assert (entry["token"], entry["logprob"]) == (entry["top_logprobs"][0]["token"], likeliest[0])
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
        assert likeliest[0] <= 0
    streamed: list[Any] = []
    for chunk in stream(served, ignore_eos=True, **fields):
        found = chunk["choices"][0]["logprobs"]
        streamed += found["content"] if found else []
    assert streamed == entries
    (plain,) = choices_of(served, temperature=0, max_tokens=6, logprobs=True)
    assert [entry["top_logprobs"] for entry in plain["logprobs"]["content"]] == [[]] * 6


def test_a_bias_and_a_stop_token(served: RunningServer) -> None:
    (forced,) = choices_of(served, max_tokens=4, logit_bias={"70": 100}, temperature=0)
    spelling = served.engine.tokenizer.token_bytes(70).decode()
    assert forced["message"]["content"] == spelling * 4
    stopped = served.post(max_tokens=4, logit_bias={"70": 100}, temperature=0, stop_token_ids=[70]).json()
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["choices"][0]["message"]["content"] == ""
    late = served.post(
        max_tokens=6, min_tokens=3, logit_bias={"70": 100}, temperature=0, stop_token_ids=[70]
    ).json()
    assert late["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("fields", "accepts"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in ("yes", "no")),
        ({"structured_outputs": {"regex": "[ab]{3}c"}}, lambda text: len(text) == 4 and text[3] == "c"),
        ({"guided_grammar": 'start: "x" "y"+ "."'}, lambda text: text[:2] == "xy" and text[-1] == "."),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "day",
                        "schema": {
                            "type": "object",
                            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                            "required": ["n"],
                            "additionalProperties": False,
                        },
                    },
                }
            },
            lambda text: 0 <= json.loads(text)["n"] <= 9,
        ),
    ],
)
def test_replies_follow_what_they_must_look_like(served: RunningServer, fields: Any, accepts: Any) -> None:
    reply = served.post(max_tokens=300, seed=1, **fields).json()["choices"][0]
    assert reply["finish_reason"] == "stop"
    assert accepts(reply["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs"),
        ({"structured_outputs": {"json": "not json"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {"type": "nonsense"}}}, "structured_outputs"),
    ],
)
def test_grammars_that_mean_nothing_are_refused(served: RunningServer, fields: Any, param: str) -> None:
    response = served.post(max_tokens=5, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert served.post(max_tokens=1).status_code == 200


def test_a_recursive_schema_ends_with_the_limit_of_tokens(served: RunningServer) -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    reply = served.post(max_tokens=20, structured_outputs={"json": tree})
    assert reply.status_code in (200, 400)
    if reply.status_code == 200:
        assert reply.json()["choices"][0]["finish_reason"] == "length"
    else:
        assert reply.json()["error"]["param"] == "structured_outputs"
