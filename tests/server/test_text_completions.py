"""`/v1/completions`, `/tokenize` and `/detokenize` over real HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest

from duologue import Engine
from duologue.api.logprobs import TextLogprobs
from duologue.engine.events import TokenLogprob
from duologue.engine.sampling_params import SamplingParams
from duologue.server.prompts import Prompts
from tests.server.conftest import RunningServer


def complete(served: RunningServer, **fields: Any) -> httpx.Response:
    body = {"model": served.engine.model_name, **fields}
    return httpx.post(served.url + "v1/completions", json=body, timeout=60)


def texts_of(served: RunningServer, **fields: Any) -> list[str]:
    response = complete(served, temperature=0, ignore_eos=True, **fields)
    assert response.status_code == 200, response.text
    reply = response.json()
    assert reply["object"] == "text_completion"
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(reply["choices"])))
    return [choice["text"] for choice in reply["choices"]]


def test_all_spellings_of_a_prompt(served: RunningServer) -> None:
    engine = served.engine
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    one, two = (engine.generate(prompt, params).text for prompt in ("Once upon", "The sea"))
    ids = [engine.encode_prompt(prompt) for prompt in ("Once upon", "The sea")]
    assert texts_of(served, prompt="Once upon", max_tokens=8) == [one]
    assert texts_of(served, prompt=["Once upon", "The sea"], max_tokens=8) == [one, two]
    assert texts_of(served, prompt=ids[0], max_tokens=8) == [one]
    assert texts_of(served, prompt=ids, max_tokens=8, n=2) == [one, one, two, two]
    assert texts_of(served, prompt="Once upon", max_tokens=8, echo=True) == ["Once upon" + one]
    assert complete(served, prompt="x", ignore_eos=True).json()["usage"]["completion_tokens"] == 16


def test_a_stream_is_the_whole(served: RunningServer) -> None:
    fields: dict[str, Any] = {"prompt": ["a b", "c d"], "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    whole = texts_of(served, prompt=["a b", "c d"], max_tokens=9, echo=True)
    response = complete(served, stream=True, echo=True, stream_options={"include_usage": True}, **fields)
    events = response.text.split("\n\n")
    assert events[-2] == "data: [DONE]"
    chunks = [json.loads(event[6:]) for event in events[:-2]]
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == whole
    assert chunks[-1]["usage"]["completion_tokens"] == 18


def test_log_probabilities_of_text(served: RunningServer) -> None:
    reply = complete(served, prompt="a", max_tokens=4, temperature=0, logprobs=2, ignore_eos=True).json()
    found = reply["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["text_offset"]) == 4
    assert found["text_offset"][0] == 0
    assert all(2 <= len(top) <= 3 for top in found["top_logprobs"])


def test_the_chosen_token_is_among_the_likeliest(served: RunningServer) -> None:
    fields = {"prompt": "a", "max_tokens": 8, "temperature": 2, "seed": 1, "ignore_eos": True}
    for number in (0, 1):
        found = complete(served, logprobs=number, **fields).json()["choices"][0]["logprobs"]
        chosen = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
        for token, logprob, top in chosen:
            assert top[token] == logprob
            assert 1 <= len(top) <= number + 1


def test_parts_of_characters_are_told_apart(served: RunningServer) -> None:
    tokenizer = served.engine.tokenizer
    tokens = [tokenizer.encode("a")[0], *tokenizer.encode("\u01c3")[-2:], tokenizer.encode("b")[0]]
    parts = [tokenizer.token_bytes(token) for token in tokens]
    assert [len(part) for part in parts[1:3]] == [1, 1]
    logprobs = TextLogprobs(tokenizer)
    entries = [TokenLogprob(token, -1.0, ((tokens[1], -2.0), (tokens[2], -3.0))) for token in tokens]
    found = [logprobs.of(entries[:2]), logprobs.of(entries[2:])]  # as a stream cuts them
    spelled = [token for part in found for token in part["tokens"]]
    assert spelled[1:3] == ["bytes:\\xc7", "bytes:\\x83"]
    assert set(found[0]["top_logprobs"][0]) == {spelled[0], *spelled[1:3]}
    text = b"".join(parts).decode()
    offsets = [offset for part in found for offset in part["text_offset"]]
    start = text.index("\u01c3")
    assert offsets == [0, start, start, start + 1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ["a"] * 200}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({"prompt": "a" * 3_000_000}, "prompt"),
        ({"prompt": "a b " * 3000}, "prompt"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "a", "logprobs": 50}, "logprobs"),
        ({"prompt": "a", "messages": []}, "messages"),
    ],
)
def test_bad_requests(served: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = complete(served, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_best_of_as_many_as_n_is_nothing(served: RunningServer) -> None:
    assert complete(served, prompt="a", best_of=2, n=2, max_tokens=1).status_code == 200


def test_tokens_of_texts_and_messages_and_back(served: RunningServer) -> None:
    def tokenize(**fields: Any) -> Any:
        return httpx.post(served.url + "tokenize", json=fields, timeout=60).json()

    engine = served.engine
    found = tokenize(prompt="Hello, <|im_start|>you", return_token_strs=True)
    assert found["tokens"] == engine.tokenizer.encode(
        "Hello, <|im_start|>you", parse_special=True, add_bos=engine.tokenizer.adds_bos
    )
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == engine.context_tokens
    back = httpx.post(served.url + "detokenize", json={"tokens": found["tokens"]}).json()
    assert back == {"prompt": "Hello, <|im_start|>you"}
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenize(messages=messages)["tokens"] == engine.encode_chat(messages)
    assert tokenize(messages=messages)["token_strs"] is None
    longer = [*messages, {"role": "assistant", "content": "Well"}]
    opened = tokenize(messages=longer, continue_final_message=True)["tokens"]
    assert engine.tokenizer.decode(opened).endswith("Well")
    assert tokenize()["error"]["param"] == "prompt"
    assert tokenize(prompt="a", messages=messages)["error"]["param"] == "prompt"
    assert tokenize(prompt="a", model="gpt-4")["error"]["code"] == "model_not_found"
    wrong = httpx.post(served.url + "detokenize", json={"tokens": [-1]}).json()
    assert wrong["error"]["param"] == "tokens[0]"


def test_ids_that_the_model_does_not_have(served: RunningServer) -> None:
    tokenizer, vocab_size = served.engine.tokenizer, served.engine.spec.vocab_size

    def error(tokens: list[int]) -> Any:
        response = httpx.post(served.url + "detokenize", json={"tokens": tokens}, timeout=60)
        assert response.status_code == 400
        return response.json()["error"]

    for token in (vocab_size, 2**31 - 1):
        found = error([0, token])
        assert (found["param"], found["code"]) == ("tokens[1]", "invalid_value")
        assert str(token) in found["message"]
    assert error([1] * (served.engine.context_tokens + 1))["code"] == "context_length_exceeded"
    assert tokenizer.token_bytes(2**31 - 1) == b""
    assert 2**31 - 1 not in tokenizer._bytes


def test_as_many_ids_as_the_context_has(served: RunningServer) -> None:
    count = served.engine.context_tokens
    tokens = served.engine.tokenizer.encode("word " * count)[:count]
    back = httpx.post(served.url + "detokenize", json={"tokens": tokens}, timeout=60).json()
    assert back == {"prompt": served.engine.tokenizer.decode(tokens, skip_special=False)}


def test_many_short_texts_leave_the_event_loop(tiny_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    encode = tiny_engine.tokenizer.encode

    def noted(*args: Any, **options: Any) -> list[int]:
        threads.add(threading.get_ident())
        return encode(*args, **options)

    async def main() -> None:
        prompts = Prompts(tiny_engine)
        few = await prompts.encode_texts(["word " * 20] * 2)
        assert threads == {threading.get_ident()}
        threads.clear()
        assert await prompts.encode_texts(["word " * 20] * 200) == few * 100
        assert threads
        assert threading.get_ident() not in threads

    monkeypatch.setattr(tiny_engine.tokenizer, "encode", noted)
    asyncio.run(main())
