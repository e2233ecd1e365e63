"""Chat requests: what is accepted, what is refused, and how a refusal names its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duologue.api.chat import ChatCompletionRequest, parse_chat_request
from duologue.api.messages import MAX_MESSAGES
from duologue.api.sampling_fields import MAX_STOP_STRINGS
from duologue.dialogue.grammar import Grammar
from duologue.errors import InvalidRequestError

_BASE: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse(**fields: Any) -> ChatCompletionRequest:
    return parse_chat_request(json.dumps({**_BASE, **fields}).encode())


def refusal(body: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_chat_request(body)
    return caught.value


def test_a_minimal_request_has_openai_defaults() -> None:
    request = parse()
    params = request.sampling_params()
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
    assert (params.seed, params.max_tokens, params.stop, params.ignore_eos) == (None, None, (), False)
    assert not request.stream
    assert not request.include_usage


def test_every_sampling_field_reaches_the_engine() -> None:
    params = parse(
        temperature=0.5, top_p=0.9, top_k=40, seed=7, max_tokens=12, stop=["a", "b"], ignore_eos=True
    ).sampling_params()
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (0.5, 0.9, 40, 7)
    assert (params.max_tokens, params.stop, params.ignore_eos) == (12, ("a", "b"), True)


def test_both_spellings_of_the_reply_limit() -> None:
    assert parse(max_completion_tokens=5).sampling_params().max_tokens == 5
    assert parse(max_completion_tokens=5, max_tokens=5).sampling_params().max_tokens == 5


def test_the_other_sampling_fields_reach_the_engine() -> None:
    params = parse(
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.2,
        logit_bias={"5": -100, "7": 2.5},
        logprobs=True,
        top_logprobs=3,
        min_tokens=2,
        stop_token_ids=[9],
    ).sampling_params()
    assert (params.min_p, params.presence_penalty, params.frequency_penalty) == (0.1, 1, -1)
    assert (params.repetition_penalty, params.logit_bias) == (1.2, ((5, -100), (7, 2.5)))
    assert (params.logprobs, params.min_tokens, params.stop_token_ids) == (3, 2, (9,))
    assert parse(logprobs=True).sampling_params().logprobs == 0


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "null"}},
                }
            },
            "json_schema",
            '{"type": "null"}',
        ),
        ({"structured_outputs": {"json": {"type": "null"}}}, "json_schema", '{"type": "null"}'),
        (
            {"structured_outputs": {"choice": ["a", 'b"', "\x7f"]}},
            "choice",
            'start: "a" | "b\\"" | "\\u007f"',
        ),
        ({"structured_outputs": {"grammar": 'start: "x"'}}, "lark", 'start: "x"'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_json": '{"type": "null"}'}, "json_schema", '{"type": "null"}'),
    ],
)
def test_what_a_reply_has_to_look_like(fields: dict[str, Any], kind: str, text: str) -> None:
    assert parse(**fields).structure() == Grammar(kind, text)  # type: ignore[arg-type]


def test_a_wrong_choice_of_tools_is_told_how_it_is_spelled() -> None:
    error = refusal(json.dumps({**_BASE, "tools": [_TOOL], "tool_choice": "maybe"}).encode())
    assert '{"type": "function", "function": {"name": ...}}' in str(error)
    assert "{{" not in str(error)


def test_calls_and_their_results_reach_the_template() -> None:
    request = parse(**_called('{"a": 1}'), tools=[_TOOL])
    assert request.template_messages()[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert (request.choice_of_tools.mode, parse().choice_of_tools.mode) == ("auto", "none")
    assert parse(tools=[_TOOL], tool_choice=_named("f")).choice_of_tools.name == "f"
    assert parse(tools=[_TOOL], tool_choice="none").template_tools() is None
    result = parse(messages=[{"role": "tool", "content": "7", "tool_call_id": "1"}])
    assert result.template_messages() == [{"role": "tool", "content": "7", "tool_call_id": "1"}]


def test_one_stop_string_needs_no_list() -> None:
    assert parse(stop="\n").sampling_params().stop == ("\n",)


def test_top_p_zero_leaves_the_likeliest_token() -> None:
    params = parse(top_p=0, top_k=50).sampling_params()
    assert (params.top_p, params.top_k) == (1.0, 1)


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_is_taken(seed: int) -> None:
    assert parse(seed=seed).sampling_params().seed == seed % 2**64


def test_nulls_count_as_absent() -> None:
    nulls = dict.fromkeys(
        [
            "temperature",
            "top_p",
            "seed",
            "max_tokens",
            "stop",
            "stream",
            "stream_options",
            "tools",
            "n",
            "logprobs",
        ]
    )
    assert parse(**nulls) == parse()


def test_content_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    request = parse(
        messages=[{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts}]
    )
    assert request.template_messages() == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "one\ntwo"},
    ]


def test_a_reply_can_be_sent_back_whole() -> None:
    reply = {"role": "assistant", "content": "hello", "refusal": None, "annotations": [], "tool_calls": None}
    request = parse(messages=[*_BASE["messages"], reply, {"role": "user", "content": "more", "name": "ann"}])
    assert request.template_messages()[1:] == [
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "more", "name": "ann"},
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u-1", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"safety_identifier": "s", "parallel_tool_calls": True},
        {"n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "tools": [], "tool_choice": "none"},
        {"frequency_penalty": 0, "presence_penalty": 0.0, "response_format": {"type": "text"}},
        {"modalities": ["text"], "reasoning_effort": "none"},
        {"reasoning_effort": "medium", "verbosity": "medium", "length_penalty": 1.0},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)
def test_fields_that_change_nothing_are_accepted(fields: dict[str, Any]) -> None:
    parse(**fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "a"}),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("length_penalty", True),
        ("functions", 0),
        ("web_search_options", {}),
    ],
)
def test_fields_that_would_change_the_reply_are_refused(name: str, value: Any) -> None:
    error = refusal(json.dumps({**_BASE, name: value}).encode())
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert f"'{name}'" in str(error)


_CONTENT = "messages[0].content"


def _with_message(message: Any) -> dict[str, Any]:
    return {"messages": [message]}


_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_CALL = "messages[0].tool_calls[0].function"


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _called(arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return _with_message({"role": "assistant", "content": None, "tool_calls": [call]})


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": -0.1}, "temperature", "below_min_value"),
        ({"temperature": 2.5}, "temperature", "above_max_value"),
        ({"temperature": float("nan")}, "temperature", "invalid_value"),
        ({"temperature": float("inf")}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": 1.5}, "top_p", "above_max_value"),
        ({"top_p": float("nan")}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "below_min_value"),
        ({"top_k": 1.5}, "top_k", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "below_min_value"),
        ({"max_tokens": -5}, "max_tokens", "below_min_value"),
        ({"max_tokens": 2**40}, "max_tokens", "above_max_value"),
        ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "below_min_value"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
        ({"seed": 2**63}, "seed", "above_max_value"),
        ({"seed": 0.5}, "seed", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ""}, "stop[0]", "empty_string"),
        ({"stop": ["a", ""]}, "stop[1]", "empty_string"),
        ({"stop": ["a"] * (MAX_STOP_STRINGS + 1)}, "stop", "array_above_max_length"),
        ({"stop": "a" * 5000}, "stop[0]", "string_above_max_length"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options.other", "unknown_parameter"),
        ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
        ({"prompt_cache_key": ""}, "prompt_cache_key", "empty_string"),
        ({"prompt_cache_key": 5}, "prompt_cache_key", "invalid_type"),
        ({"prompt_cache_key": "k" * 1025}, "prompt_cache_key", "string_above_max_length"),
        ({"prompt_cache_key": "k" * (1 << 20)}, "prompt_cache_key", "string_above_max_length"),
        ({"prompt_cache_key": "a\x00b"}, "prompt_cache_key", "invalid_value"),
        ({"prompt_cache_key": "a\nb"}, "prompt_cache_key", "invalid_value"),
        ({"prompt_cache_key": "\x7fELF"}, "prompt_cache_key", "invalid_value"),
        ({"cache_salt": ""}, "cache_salt", "empty_string"),
        ({"cache_salt": "s" * 1025}, "cache_salt", "string_above_max_length"),
        ({"cache_salt": 1}, "cache_salt", "invalid_type"),
        ({"cache_retention_s": -1}, "cache_retention_s", "below_min_value"),
        ({"cache_retention_s": 1e9}, "cache_retention_s", "above_max_value"),
        ({"cache_retention_s": float("nan")}, "cache_retention_s", "invalid_value"),
        ({"explain_cache": "yes"}, "explain_cache", "invalid_type"),
        ({"continue_final_message": 1}, "continue_final_message", "invalid_type"),
        ({"truncation": "middle"}, "truncation", "invalid_value"),
        ({"truncation": "auto", "truncation_step": 0}, "truncation_step", "below_min_value"),
        ({"truncation_step": 5}, "truncation_step", "invalid_value"),
        ({"truncation": "disabled", "truncation_reserve": 5}, "truncation_reserve", "invalid_value"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"n": 0}, "n", "below_min_value"),
        ({"n": 1000}, "n", "above_max_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"min_p": 1.1}, "min_p", "above_max_value"),
        ({"presence_penalty": 2.1}, "presence_penalty", "above_max_value"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "below_min_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "above_max_value"),
        ({"logprobs": 1}, "logprobs", "invalid_type"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "above_max_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_value"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "below_min_value"),
        ({"stop": ["a"] * 10_000}, "stop", "array_above_max_length"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"regex": "a" * 300_000}}, "structured_outputs.regex", "invalid_value"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_json", "invalid_value"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "invalid_value",
        ),
        ({"tools": [{}]}, "tools[0].type", "missing_required_parameter"),
        ({"tools": [_TOOL, _TOOL]}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [_TOOL], "tool_choice": "maybe"}, "tool_choice", "invalid_value"),
        ({"tools": [_TOOL], "tool_choice": _named("g")}, "tool_choice", "invalid_value"),
        (
            {"tools": [_TOOL], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "tool_choice",
            "invalid_value",
        ),
        (_called('{"a": 1'), f"{_CALL}.arguments", "invalid_value"),
        (_called("[1]"), f"{_CALL}.arguments", "invalid_value"),
        ({"model": ""}, "model", "empty_string"),
        ({"model": 5}, "model", "invalid_type"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        (_with_message("hi"), "messages[0]", "invalid_type"),
        (_with_message({"role": "user"}), "messages[0].content", "missing_required_parameter"),
        (_with_message({"content": "x"}), "messages[0].role", "missing_required_parameter"),
        (_with_message({"role": "user", "content": None}), "messages[0].content", "invalid_type"),
        (_with_message({"role": "king", "content": "x"}), "messages[0].role", "invalid_value"),
        (_with_message({"role": "function", "content": "x"}), "messages[0]", "unsupported_value"),
        ({"messages": [_BASE["messages"][0]] * (MAX_MESSAGES + 1)}, "messages", "array_above_max_length"),
        (_with_message({"role": "user", "content": "x", "mood": 1}), "messages[0].mood", "unknown_parameter"),
        (
            _with_message({"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}),
            "messages[0].tool_calls[0].function",
            "missing_required_parameter",
        ),
        (
            _with_message({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
            "messages[0].content",
            "unsupported_value",
        ),
        (
            _with_message({"role": "user", "content": [{"type": "text"}]}),
            "messages[0].content",
            "invalid_type",
        ),
        (_with_message({"role": "user", "content": ["x"]}), _CONTENT, "unsupported_value"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(**fields).structure()
    error = caught.value
    assert (error.param, error.code) == (param, code)
    assert f"'{param}'" in str(error) or param.split(".")[-1] in str(error)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", "invalid_json", "not valid JSON"),
        (b"{", "invalid_json", "line 1"),
        (b'{"model": "m",}', "invalid_json", "line 1"),
        (b"[" * 100_000, "invalid_json", "not valid JSON"),
        (b'{"model": "\\ud800"}', "invalid_json", "not valid JSON"),
        (b"[1]", "invalid_json", "JSON object"),
        (b"null", "invalid_json", "JSON object"),
        (b'{"model": "m", "cache_salt": "a", "cache_salt": "b"}', "invalid_json", "'cache_salt' twice"),
        (b'{"messages": [{"role": "user", "role": "system"}]}', "invalid_json", "'role' twice"),
        (b'{"model": "m", "mod\\u0065l": "n"}', "invalid_json", "'model' twice"),
        (b'"text"', "invalid_json", "JSON object"),
        (b'{"model": "\xff"}', "invalid_utf8", "byte 11"),
        (json.dumps(_BASE).encode("utf-16"), "invalid_utf8", "not valid UTF-8"),
    ],
)
def test_broken_bodies_are_explained(body: bytes, code: str, says: str) -> None:
    error = refusal(body)
    assert error.code == code
    assert says in str(error)


@pytest.mark.parametrize(("digits", "code"), [(4000, "above_max_value"), (10_000, "invalid_json")])
def test_absurd_numbers_are_refused(digits: int, code: str) -> None:
    assert refusal(b'{"model": "m", "seed": ' + b"9" * digits + b"}").code == code


def test_the_cache_fields_make_a_scope() -> None:
    plain = parse().cache_scope("acme")
    assert (plain.tenant, plain.key, plain.retention_s) == ("acme", None, 0.0)
    assert plain.salt == parse().cache_scope("acme").salt
    named = parse(prompt_cache_key="Gespräch 7/a", cache_salt="user-1", cache_retention_s=60).cache_scope(
        "acme"
    )
    assert (named.tenant, named.key, named.retention_s) == ("acme", "Gespräch 7/a", 60.0)
    salts = {
        plain.salt,
        named.salt,
        parse().cache_scope("beta").salt,
        parse(cache_salt="user-1").cache_scope("beta").salt,
        parse(cache_salt="user-2").cache_scope("acme").salt,
    }
    assert len(salts) == 5


def test_truncation_is_off_unless_asked_for() -> None:
    assert parse().cut(1000) is None
    default = parse(truncation="auto").cut(1000)
    assert default is not None
    assert (default.limit_tokens, default.reserve_tokens, default.step_tokens) == (1000, 250, 500)
    chosen = parse(truncation="auto", truncation_step=100, truncation_reserve=700).cut(1000)
    assert chosen is not None
    assert (chosen.reserve_tokens, chosen.step_tokens) == (700, 100)
    small = parse(truncation="auto", truncation_reserve=900).cut(1000)
    assert small is not None
    assert small.step_tokens == 100


def test_inserts_reach_the_dialogue_layer() -> None:
    assert parse().volatile is None
    inserts = parse(
        volatile=[{"content": "It is noon."}, {"role": "user", "content": "x", "placement": "tail"}]
    )
    assert inserts.volatile is not None
    assert [(insert.role, insert.placement) for insert in inserts.volatile] == [
        ("system", "freeze"),
        ("user", "tail"),
    ]


def test_a_message_never_shows_the_conversation() -> None:
    error = refusal(json.dumps({**_BASE, "messages": [{"role": "user", "content": {"secret": 1}}]}).encode())
    assert "secret" not in str(error)
