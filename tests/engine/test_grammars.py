"""Replies that follow a grammar, whatever the model would rather say; and grammars that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from duologue import Engine, Grammar, SamplingParams
from duologue.dialogue.grammar import MAX_GRAMMAR_BYTES
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine import grammars
from duologue.engine.grammars import Grammars
from duologue.errors import InvalidRequestError
from duologue.kernels.sampling import mask_words
from duologue.models.packed_model import PackedModel
from tests.engine.driving import Listener, assert_nothing_is_held

PROMPT = [5, 9, 9, 60, 61, 62, 60]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bc", "déjà"]}, "minItems": 1, "maxItems": 3},
        "next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "next"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(tiny_gqa: PackedModel) -> Iterator[Engine]:
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1) as engine:
        yield engine
        assert_nothing_is_held(engine)


def follow(grammar: Grammar, seed: int = 1, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=400, grammar=grammar, **options)


@pytest.mark.parametrize("seed", range(8))
def test_random_weights_write_json_of_the_schema(engine: Engine, seed: int) -> None:
    reply = engine.generate(PROMPT, follow(Grammar("json_schema", json.dumps(SCHEMA)), seed))
    assert reply.finish_reason == "stop"
    assert reply.token_ids[-1] in engine.tokenizer.eos_ids
    value = json.loads(reply.text)
    assert list(value) == ["name", "age", "tags", "next"]
    assert len(value["name"]) <= 8
    assert 0 <= value["age"] <= 150
    assert 1 <= len(value["tags"]) <= 3
    assert set(value["tags"]) <= {"a", "bc", "déjà"}
    assert value["next"] in (None, True, False)


def test_a_regular_expression_and_a_lark_grammar_are_followed(engine: Engine) -> None:
    spelled = engine.generate(PROMPT, follow(Grammar("regex", "(yes|no) [0-9]{3}é!")))
    assert spelled.finish_reason == "stop"
    assert spelled.text[-2:] == "é!"
    assert spelled.text.split()[0] in ("yes", "no")
    lark = 'start: "<" (NUMBER | start) ">"\nNUMBER: /[0-9]{1,4}/'
    nested = engine.generate(PROMPT, follow(Grammar("lark", lark))).text
    assert nested.strip("<>").isdigit()
    assert nested.count("<") == nested.count(">") > 0


def test_json_object_is_an_object(engine: Engine) -> None:
    # Random weights might never close a string: the bias on quotes and braces makes them.
    ends = tuple((token, 8.0) for token in (*engine.tokenizer.encode('"'), *engine.tokenizer.encode("}")))
    for seed in range(4):
        reply = engine.generate(PROMPT, follow(Grammar("json_object"), seed, logit_bias=ends))
        assert reply.finish_reason == "stop"
        assert isinstance(json.loads(reply.text), dict)


def test_greedy_replies_follow_too_and_log_probabilities_do_not_know_of_the_grammar(engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, grammar=Grammar("regex", "[xyz]{5}"), logprobs=1)
    reply = engine.generate(PROMPT, params)
    assert len(reply.text) == 5
    assert set(reply.text) <= set("xyz")
    assert any(entry.top[0][1] > entry.logprob for entry in reply.logprobs)


def test_a_stop_string_ends_a_reply_in_the_middle_of_its_grammar(engine: Engine) -> None:
    reply = engine.generate(PROMPT, follow(Grammar("regex", "a{5}b{5}"), stop=("bb",)))
    assert (reply.text, reply.finish_reason) == ("aaaaa", "stop")


def test_a_grammar_ends_whatever_else_is_asked_for(engine: Engine) -> None:
    reply = engine.generate(PROMPT, follow(Grammar("regex", "abc"), ignore_eos=True, min_tokens=50))
    assert (reply.text, reply.finish_reason) == ("abc", "stop")
    cut = engine.generate(PROMPT, SamplingParams(max_tokens=3, grammar=Grammar("regex", "a{100}")))
    assert cut.finish_reason == "length"


def test_control_tokens_are_out_of_reach(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="no token of this model"):
        engine.compile_grammar(Grammar("lark", "start: <|im_start|>"))
    # Behind text it shows only on the way: the reply ends with an error, others do not.
    listener, other = Listener(), Listener()
    engine.submit(PROMPT, follow(Grammar("lark", 'start: "ab" <|im_start|>')), listener)
    engine.submit(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), other)
    assert listener.last().finish_reason == "error"
    assert "no token of this model" in (listener.last().error or "")
    assert "".join(event.text for event in listener.events) == "ab"
    assert other.last().finish_reason == "length"


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (Grammar("json_schema", "{"), "Expecting property name"),
        (Grammar("json_schema", "[]"), "a schema is a JSON object"),
        (Grammar("json_schema", '{"type": "strange"}'), "strange"),
        (Grammar("json_schema", '{"not": {}}'), "not"),
        (Grammar("json_schema", '{"$ref": "#/$defs/none"}'), "does not exist"),
        (Grammar("json_schema", '{"$ref": "http://localhost/schema"}'), "localhost"),
        (Grammar("json_schema", '{"$ref": "#"}'), "no text at all"),
        (Grammar("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000), "nested too deeply"),
        (Grammar("json_schema", '{"items":' * 500 + "{}" + "}" * 500), "recursion limit"),
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("regex", r"(?=a)b"), "look-around"),
        (Grammar("regex", "x(((a{100}){100}){100}){100}"), "too many expressions"),
        (Grammar("lark", "start: x"), "unknown name"),
        (Grammar("lark", "start: start"), "no text at all"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(
    engine: Engine, grammar: Grammar, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        engine.compile_grammar(grammar, param="response_format")
    assert caught.value.param == "response_format"
    with pytest.raises(InvalidRequestError, match=message):
        engine.submit(PROMPT, follow(grammar), Listener())


def test_recursion_that_ends_is_taken(engine: Engine) -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
    }
    reply = engine.generate(PROMPT, follow(Grammar("json_schema", json.dumps(tree)), logit_bias=((62, 4.0),)))
    assert reply.finish_reason in ("stop", "length")
    assert reply.text.startswith("[")


def test_chains_as_long_as_a_grammar_may_be_do_not_overflow_the_stack(engine: Engine) -> None:
    compiler = Grammars(engine.tokenizer, engine.spec.vocab_size)
    rules = [f"r{i}:r{i + 1}" for i in range(1480)]
    lark = "\n".join(["start:r0", *rules, f'r{len(rules)}:"1"'])
    chain = {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(1900)}
    schema = json.dumps({"$ref": "#/$defs/0", "$defs": {**chain, "1900": {"const": 1}}})
    longer = {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(3700)}
    called = json.dumps({"$ref": "#/$defs/0", "$defs": {**longer, "3700": {"const": 1}}})
    calls = Grammar("call", f"start: %json {called}")
    for grammar in (Grammar("lark", lark), Grammar("json_schema", schema), calls):
        assert len(grammar.text) > 0.9 * MAX_GRAMMAR_BYTES[grammar.kind]
        assert compiler.start(grammar).allowed(engine.tokenizer.encode("1")) == 1


def test_compiled_grammars_are_kept_up_to_a_number(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "KEPT_GRAMMARS", 2)
    compiler = Grammars(engine.tokenizer, engine.spec.vocab_size)
    for text in ("a", "b", "a", "c"):
        compiler.start(Grammar("regex", text))
    assert [grammar.text for grammar in compiler._compiled] == ["a", "c"]


def test_masks_of_drafted_tokens_leave_the_reply_where_it_was(engine: Engine) -> None:
    words = mask_words(engine.spec.vocab_size)
    fresh, after = np.empty(words, dtype=np.uint32), np.empty(words, dtype=np.uint32)
    compiler = Grammars(engine.tokenizer, engine.spec.vocab_size)
    reply = compiler.start(Grammar("regex", "[ab]{3}c"))
    letters = {char: engine.tokenizer.encode(char)[0] for char in "abc"}
    drafted = [letters["a"], letters["b"], letters["b"]]
    reply.fill(fresh)
    reply.fill(after, drafted)
    assert _tokens(after) == {letters["c"]}
    assert reply.allowed([*drafted, letters["a"]]) == 3
    reply.fill(after, [letters["c"]])
    assert _tokens(after) == set()
    reply.fill(after)
    assert np.array_equal(fresh, after)
    assert {letters["a"], letters["b"]} <= _tokens(fresh)
    assert letters["c"] not in _tokens(fresh)
    for token in (*drafted, letters["c"]):
        assert reply.accept(token) is None
    assert reply.has_ended


def test_control_tokens_are_for_calls_alone_and_only_those_named(engine: Engine) -> None:
    start, end = (engine.tokenizer.special_tokens[spelling] for spelling in ("<|im_start|>", "<|endoftext|>"))
    reply = engine.generate(PROMPT, follow(Grammar("call", f'start: <[{start}]> "ab"', frozenset([start]))))
    assert reply.token_ids[0] == start
    assert (reply.text, reply.finish_reason) == ("ab", "stop")
    with pytest.raises(InvalidRequestError, match="no token of this model"):
        engine.compile_grammar(Grammar("call", f'start: <[{start}]> "ab"'))
    with pytest.raises(InvalidRequestError, match="no token of this model"):
        engine.compile_grammar(Grammar("call", f'start: <[{start}]> "ab"', frozenset([end])))
    with pytest.raises(InvalidRequestError, match="out of reach of a lark"):
        Grammar("lark", f"start: <[{start}]>", frozenset([start]))


def test_every_byte_of_a_vocabulary_is_known_to_the_compiler(smollm2: PackedModel) -> None:
    tokenizer = Tokenizer.from_bytes(smollm2.tokenizer)
    compiler = Grammars(tokenizer, smollm2.spec.vocab_size)
    text = 'naïve "quotes", \t 東京 😀 and  spaces'
    reply = compiler.start(Grammar("lark", f"start: {json.dumps(text, ensure_ascii=False)}"))
    ids = tokenizer.encode(text)
    assert reply.allowed(ids) == len(ids)
    for token in ids:
        assert reply.accept(token) is None
    assert reply.has_ended


def _tokens(mask: np.ndarray[Any, np.dtype[np.uint32]]) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
