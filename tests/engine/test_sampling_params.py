"""Parameters out of range are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from duologue import Grammar, SamplingParams
from duologue.dialogue.grammar import MAX_GRAMMAR_BYTES
from duologue.errors import InvalidRequestError

NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": NAN}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_p": NAN}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": NAN}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 11.0}, "repetition_penalty"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": ((5, 101.0),)}, "logit_bias"),
        ({"logit_bias": ((5, NAN),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((5, 1.0), (5, 2.0))}, "logit_bias"),
        ({"logit_bias": tuple((i, 1.0) for i in range(5000))}, "logit_bias"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": tuple(range(2000))}, "stop_token_ids"),
        ({"stop": tuple(map(str, range(10_000)))}, "stop"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=param) as caught:
        SamplingParams(**change)
    assert (caught.value.param, caught.value.code) == (param, "invalid_value")


def test_the_ends_of_each_range_are_taken() -> None:
    SamplingParams(
        min_p=1.0,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=10.0,
        logit_bias=((0, -100.0), (1, 100.0)),
        logprobs=20,
        stop_token_ids=(0,),
        min_tokens=5,
        max_tokens=5,
        grammar=Grammar("json_object"),
    )


@pytest.mark.parametrize(
    ("change", "param"),
    [({"logit_bias": ((320, 1.0),)}, "logit_bias"), ({"stop_token_ids": (5, 320)}, "stop_token_ids")],
)
def test_ids_outside_the_vocabulary_are_refused_by_name(change: dict[str, Any], param: str) -> None:
    params = SamplingParams(**change)
    params.require_vocabulary(321)
    with pytest.raises(InvalidRequestError, match="320, but the vocabulary has 320") as caught:
        params.require_vocabulary(320)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("yaml", "x", "json_object, json_schema, regex, lark"),
        ("json_schema", "", "empty"),
        ("json_object", "{}", "takes no text"),
        ("regex", "é" * MAX_GRAMMAR_BYTES["regex"], "bytes, more than"),
        ("regex", "\ud800", "half of a character"),
    ],
)
def test_a_grammar_that_can_mean_nothing_is_refused(kind: Any, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        Grammar(kind, text)
