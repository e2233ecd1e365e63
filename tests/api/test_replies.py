"""Reply objects, checked against the official client's own types."""

from __future__ import annotations

import json

import pytest
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from duologue.api.chat_replies import ChatChoice, ChatChunks, chat_completion
from duologue.api.replies import DONE_EVENT, Header, Usage, error_event, model_object

_USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2)


def chunks(events: bytes) -> list[dict[str, object]]:
    assert events.endswith(b"\n\n")
    lines = events[:-2].split(b"\n\n")
    assert all(line.startswith(b"data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines]


def test_a_whole_reply() -> None:
    body = chat_completion(Header("id-1", 5, "m"), [ChatChoice('say "hi" 😀\n', "stop")], _USAGE)
    completion = ChatCompletion.model_validate_json(body, strict=True)
    assert completion.choices[0].message.content == 'say "hi" 😀\n'
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 10
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 2
    assert json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens_details"] == {"memory": 2}


@pytest.mark.parametrize("with_usage", [False, True])
def test_a_streamed_reply(with_usage: bool) -> None:
    encoder = ChatChunks(Header("id-1", 5, 'odd "name"'), with_usage=with_usage)
    events = encoder.role() + encoder.delta("Hel") + encoder.delta("lo") + encoder.finish("length")
    events += encoder.end(_USAGE)
    assert events.endswith(DONE_EVENT)
    objects = chunks(events[: -len(DONE_EVENT)])
    parsed = [ChatCompletionChunk.model_validate(chunk) for chunk in objects]
    assert {(chunk.id, chunk.created, chunk.model) for chunk in parsed} == {("id-1", 5, 'odd "name"')}
    choices = [chunk.choices[0] for chunk in parsed if chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == "Hello"
    assert [choice.finish_reason for choice in choices] == [None, None, None, "length"]
    if with_usage:
        assert [chunk["usage"] for chunk in objects[:-1]] == [None] * 4
        assert parsed[-1].choices == []
        assert objects[-1]["usage"] == _USAGE.as_dict()
    else:
        assert not any("usage" in chunk for chunk in objects)


@pytest.mark.parametrize(
    "text", ["\n\ndata: x", "\r", "\u2028\u2029\x85", "\x00", "</script>", '"\\', "日本語😀"]
)
def test_no_text_can_break_the_framing(text: str) -> None:
    event = ChatChunks(Header("i", 1, "m")).delta(text)
    # Clients differ in what they take for a line end; none may appear inside an event.
    assert len(event.decode().splitlines()) == 2
    (chunk,) = chunks(event)
    assert ChatCompletionChunk.model_validate(chunk).choices[0].delta.content == text


def test_an_error_is_one_event() -> None:
    assert error_event(b'{"error":{}}') == b'data: {"error":{}}\n\n'


def test_a_model_entry() -> None:
    entry = model_object("m", 5, 2048)
    assert Model.model_validate(entry).id == "m"
    assert entry["context_tokens"] == 2048
