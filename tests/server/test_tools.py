"""Calls of functions over real HTTP, by a random model: what is forced by grammar is a real call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tool_format import find_tool_format
from duologue.dialogue.tool_parser import ToolCallParser
from duologue.engine.grammars import Grammars
from duologue.engine.sampling_params import SamplingParams
from tests.server.conftest import RunningServer
from tests.server.test_completions import stream
from tests.server.tool_template import serve_tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What it is like outside",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}


@pytest.fixture(scope="module")
def tooled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serve_tools(tmp_path_factory.mktemp("tools") / "tooled") as server:
        yield server


def check_call(call: dict[str, Any]) -> None:
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "time":
        assert arguments == {}
    else:
        assert call["function"]["name"] == "weather"
        assert arguments["city"] in ("Paris", "Rome")
        assert 1 <= arguments["days"] <= 9


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=["required", "named"]
)
def test_a_forced_call_is_one(tooled: RunningServer, choice: Any) -> None:
    fields = {
        "tools": [WEATHER, TIME],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "seed": 4,
        "max_tokens": 300,
    }
    response = tooled.post(**fields)
    assert response.status_code == 200, response.text
    reply = response.json()["choices"][0]
    assert reply["finish_reason"] == "tool_calls"
    assert reply["message"]["content"] is None
    (call,) = reply["message"]["tool_calls"]
    check_call(call)
    if choice != "required":
        assert call["function"]["name"] == "weather"
    pieces = [
        piece
        for chunk in stream(tooled, **fields)
        for piece in chunk["choices"][0]["delta"].get("tool_calls", [])
    ]
    assert pieces[0]["function"]["name"] == call["function"]["name"]
    assert all(set(piece) == {"index", "function"} for piece in pieces[1:])
    assert "".join(piece["function"]["arguments"] for piece in pieces) == call["function"]["arguments"]
    if call["function"]["name"] == "weather":
        assert len(pieces) > 2


def test_parallel_calls_and_the_next_turn(tooled: RunningServer) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER, TIME], "max_tokens": 600, "tool_choice": "required"}
    for seed in range(20):
        reply = tooled.post(seed=seed, **fields).json()["choices"][0]
        calls = reply["message"]["tool_calls"]
        if len(calls) > 1 and reply["finish_reason"] == "tool_calls":
            break
    else:
        pytest.fail("no seed gave several calls")
    for call in calls:
        check_call(call)
    assert len({call["id"] for call in calls}) == len(calls)
    messages = [
        {"role": "user", "content": "Hello there"},
        reply["message"],
        *({"role": "tool", "tool_call_id": call["id"], "content": "42"} for call in calls),
    ]
    body = tooled.chat_body(max_tokens=4, tools=[WEATHER, TIME], explain_cache=True)
    second = httpx.post(tooled.url + "v1/chat/completions", json={**body, "messages": messages}, timeout=60)
    assert second.status_code == 200, second.text
    report = second.json()["cache_report"]
    # The template repeats the calls as they were generated, so all but their results was stored.
    asked = tooled.post(max_tokens=1, tools=[WEATHER, TIME]).json()["usage"]["prompt_tokens"]
    assert report["matched_tokens"] > asked


@pytest.mark.parametrize("source", ["[TOOL_CALLS]", "<|python_tag|>"])
def test_the_grammar_of_a_format_makes_calls_that_its_parser_reads(
    tooled: RunningServer, source: str
) -> None:
    found = find_tool_format(ChatTemplate("{{ tools }}" + source))
    assert found is not None
    engine = tooled.engine
    grammar = found.grammar([WEATHER, TIME], engine.tokenizer, one=False)
    reply = engine.generate("x", SamplingParams(seed=2, max_tokens=800, grammar=grammar))
    assert reply.finish_reason == "stop"
    parser = ToolCallParser(found.markers, ["weather", "time"])
    pieces = parser.push(reply.text) + parser.flush()
    assert parser.count >= 1
    assert not any(isinstance(piece, str) for piece in pieces)
    named = [piece.name for piece in pieces if not isinstance(piece, str) and piece.name is not None]
    assert set(named) <= {"weather", "time"}


def test_free_text_with_tools_is_text(tooled: RunningServer) -> None:
    fields = {"tools": [WEATHER], "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    reply = tooled.post(**fields).json()["choices"][0]
    assert "tool_calls" not in reply["message"]
    assert reply["finish_reason"] == "length"
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in stream(tooled, **fields))
    assert text == reply["message"]["content"]
    assert text.strip()


def test_tools_that_are_not_used_change_nothing(tooled: RunningServer) -> None:
    fields = {"max_tokens": 5, "temperature": 0}
    plain = tooled.post(**fields).json()
    without = tooled.post(tools=[WEATHER], tool_choice="none", **fields).json()
    assert plain["choices"] == without["choices"]


def test_a_cut_off_call_is_shown_as_far_as_it_came(tooled: RunningServer) -> None:
    fields = {"tools": [WEATHER], "tool_choice": "required", "seed": 1, "parallel_tool_calls": False}
    whole = tooled.post(**fields, max_tokens=300).json()["choices"][0]["message"]["tool_calls"][0]["function"]
    lengths = set()
    for most in range(30, 60, 2):
        reply = tooled.post(**fields, max_tokens=most).json()["choices"][0]
        if reply["finish_reason"] != "length":
            break
        for call in reply["message"].get("tool_calls", []):
            assert call["function"]["name"] == "weather"
            assert whole["arguments"].startswith(call["function"]["arguments"])
            lengths.add(len(call["function"]["arguments"]))
        if "tool_calls" not in reply["message"]:
            assert '<tool_call>\n{"name": "weather", "arguments": {'.startswith(reply["message"]["content"])
    assert len(lengths) > 3


def test_a_template_without_tools_refuses_them_by_name(served: RunningServer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for fields in (
        {"tools": [WEATHER]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]},
    ):
        response = httpx.post(served.url + "v1/chat/completions", json={**served.chat_body(), **fields})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tools"
        assert served.engine.model_name in response.json()["error"]["message"]


def test_as_many_functions_as_the_api_allows_may_be_required(tooled: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "anything"}}}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(128)]
    # Their grammar is not too large, only their prompt is for the context of this model.
    response = tooled.post(tools=tools, tool_choice="required")
    assert response.json()["error"]["code"] == "context_length_exceeded"
    long = {"type": "object", "properties": {"a": {"enum": ["x" * 200_000]}}}
    response = tooled.post(
        tools=[{"type": "function", "function": {"name": "f", "parameters": long}}], tool_choice="required"
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"


def test_a_schema_that_cannot_be_compiled_is_refused(tooled: RunningServer) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}
    response = tooled.post(tools=[bad], tool_choice="required")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert tooled.post(max_tokens=1).status_code == 200


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/cache/lookup", "tokenize"])
@pytest.mark.parametrize(
    "field", ["tools", "messages[1].tool_calls[0].function.arguments", "messages[0].name"]
)
def test_what_cannot_fit_is_refused_by_name(tooled: RunningServer, path: str, field: str) -> None:
    long = "x y " * 1_000_000
    name: dict[str, Any] = {"name": long} if field == "messages[0].name" else {}
    body: dict[str, Any] = {
        "model": tooled.engine.model_name,
        "messages": [{"role": "user", "content": "Hi", **name}],
    }
    if field == "tools":
        body["tools"] = [WEATHER, {"type": "function", "function": {"name": "f", "description": long}}]
    elif not name:
        call = {"type": "function", "function": {"name": "time", "arguments": json.dumps({"a": long})}}
        body["messages"] += [{"role": "assistant", "content": "", "tool_calls": [call]}]
    response = httpx.post(tooled.url + path, json=body, timeout=60)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)


def test_parameters_that_refer_to_themselves_are_followed(tooled: RunningServer) -> None:
    parameters = {
        "type": "object",
        "properties": {"id": {"$ref": "#/$defs/id"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["id", "next"],
        "additionalProperties": False,
        "$defs": {"id": {"enum": ["x", "y"]}},
    }
    tree = {"type": "function", "function": {"name": "tree", "parameters": parameters}}
    engine = tooled.engine
    found = find_tool_format(engine.template)
    assert found is not None
    compiled = Grammars(engine.tokenizer, engine.spec.vocab_size).start(
        found.grammar([tree, WEATHER], engine.tokenizer, one=True)
    )

    def allowed(arguments: str) -> bool:
        ids = engine.tokenizer.encode(
            f'<tool_call>\n{{"name": "tree", "arguments": {arguments}}}\n</tool_call>'
        )
        return compiled.allowed(ids) == len(ids)

    leaf = '{"id": "y", "next": null}'
    assert allowed(leaf)
    assert allowed(f'{{"id": "x", "next": {{"id": "y", "next": {leaf}}}}}')
    assert not allowed('{"id": "z", "next": null}')
    assert not allowed(f'{{"id": "x", "next": {{"name": "tree", "arguments": {leaf}}}}}')
    reply = tooled.post(tools=[tree], tool_choice="required", seed=1, max_tokens=600).json()["choices"][0]
    assert json.loads(reply["message"]["tool_calls"][0]["function"]["arguments"])["id"] in ("x", "y")


def many_tools(count: int, description_chars: int) -> list[dict[str, Any]]:
    text = "words that explain it " * (description_chars // 22)
    properties = {
        "path": {"type": "string", "description": text},
        "mode": {"enum": ["read", "write"], "title": "Mode"},
        "lines": {"type": "array", "items": {"type": "integer"}, "description": text},
        "options": {
            "type": "object",
            "properties": {"deep": {"type": "boolean"}, "limit": {"type": "integer"}},
        },
    }
    parameters = {"type": "object", "properties": properties, "required": ["path", "mode"]}
    return [
        {"type": "function", "function": {"name": f"tool_{i}", "description": text, "parameters": parameters}}
        for i in range(count)
    ]


def test_a_long_list_of_functions_can_be_forced(tooled: RunningServer) -> None:
    found = find_tool_format(tooled.engine.template)
    assert found is not None
    for tools in (many_tools(40, 200), many_tools(128, 2000)):
        grammar = found.grammar(tools, tooled.engine.tokenizer, one=False)
        tooled.engine.compile_grammar(grammar)
        assert "explain" not in grammar.text
    reply = tooled.engine.generate("x", SamplingParams(seed=2, max_tokens=30, grammar=grammar))
    assert reply.text.startswith('<tool_call>\n{"name": "tool_')


def test_schemas_beyond_the_limit_are_refused_by_name(tooled: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x" * 1000 + str(i) for i in range(200)]}}}
    large = {"type": "function", "function": {"name": "large", "parameters": schema}}
    choice = {"type": "function", "function": {"name": "large"}}
    response = tooled.post(tools=[large], tool_choice=choice)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("tools", "invalid_value")
    assert "131072" in error["message"]


def test_a_reply_whose_form_was_asked_for_holds_no_calls(tooled: RunningServer) -> None:
    form = {"const": '<tool_call>{"name": "time", "arguments": {}}</tool_call>'}
    fields = {"tools": [TIME], "structured_outputs": {"json": form}, "max_tokens": 200}
    reply = tooled.post(**fields).json()["choices"][0]
    assert json.loads(reply["message"]["content"]) == form["const"]
    assert "tool_calls" not in reply["message"]
