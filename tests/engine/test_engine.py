"""What a request gets: its tokens and text, where it ends, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

from duologue import Engine, SamplingParams
from duologue.engine.scheduler import SchedulerConfig
from duologue.errors import CapacityError, InvalidRequestError
from duologue.kernels import PAGE_TOKENS
from duologue.models.packed_model import PackedModel
from tests.engine.driving import Listener, assert_nothing_is_held, script

TEXT = "The quick brown fox jumps over the lazy dog, twice."


@pytest.fixture
def engine(tiny_gqa: PackedModel) -> Iterator[Engine]:
    """One token a step, so that events can be counted."""
    config = SchedulerConfig(speculation_tokens=0)
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1, scheduler=config) as engine:
        yield engine
        if engine.failure is None:
            assert_nothing_is_held(engine)


def letters(engine: Engine, text: str) -> list[int]:
    """One token for each byte, so that everything spans tokens."""
    by_bytes = {engine.tokenizer.token_bytes(i): i for i in reversed(range(3, 320))}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def test_a_batch_answers_in_the_order_of_its_prompts(engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    prompts = [[5 + i] * (3 + 40 * i) for i in range(5)]
    together = [reply.token_ids for reply in engine.generate_batch(prompts, params)]
    assert together == [engine.generate(ids, params).token_ids for ids in prompts]
    assert engine.generate_batch([], params) == []


def test_texts_chats_and_ids_are_prompts(engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    ids = engine.tokenizer.encode(TEXT, add_bos=engine.tokenizer.adds_bos)
    assert engine.generate(TEXT, params).token_ids == engine.generate(ids, params).token_ids
    assert engine.generate(np.array(ids), params).token_ids == engine.generate(ids, params).token_ids
    chat = [{"role": "user", "content": TEXT}]
    assert (
        engine.generate(chat, params).token_ids == engine.generate(engine.encode_chat(chat), params).token_ids
    )


def test_stats_count_tokens_requests_and_pages(engine: Engine) -> None:
    before = engine.stats()
    assert before.requests_total == before.steps_total == before.computed_tokens_total == 0
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    engine.generate_batch([[7] * 10, [8] * 20, [9] * 100], params)
    stats = engine.stats()
    assert stats.requests_total == 3
    assert stats.aborted_total == stats.preemptions_total == 0
    assert stats.prompt_tokens_total == 130
    assert stats.completion_tokens_total == 15
    assert stats.computed_tokens_total == 130 + 3 * 4  # the last token of a reply is never computed
    assert 5 <= stats.steps_total <= 15
    assert 0 < stats.forward_s_total <= stats.step_s_total
    assert stats.kv_memory_bytes <= 4 << 20
    assert stats.workspace_bytes > 0
    assert stats.weight_bytes > 0


def test_events_number_the_tokens(engine: Engine) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    events = list(engine.stream([5, 6, 7], params))
    assert [event.completion_tokens for event in events] == [1, 2, 3, 4, 5, 6]
    assert [len(event.token_ids) for event in events] == [1] * 6
    assert [event.finish_reason for event in events] == [None] * 5 + ["length"]
    assert {event.prompt_tokens for event in events} == {3}


@pytest.mark.parametrize("stop", ["T", "quick", "k b", "fox jumps over", "dog, twice.", "."])
def test_a_stop_string_over_many_tokens_never_leaks(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    script(engine, monkeypatch, letters(engine, TEXT + " More."))
    params = SamplingParams(max_tokens=len(TEXT), stop=("fox hunts", stop, "zzz"), ignore_eos=True)
    events = list(engine.stream([5], params))
    assert "".join(event.text for event in events) == TEXT[: TEXT.index(stop)]
    assert events[-1].finish_reason == "stop"
    assert events[-1].completion_tokens == TEXT.index(stop) + len(stop)


def test_what_only_began_like_a_stop_string_is_told_at_the_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(engine, monkeypatch, letters(engine, TEXT))
    reply = engine.generate([5], SamplingParams(max_tokens=len(TEXT), stop=("twice. Or",), ignore_eos=True))
    assert (reply.text, reply.finish_reason) == (TEXT, "length")


def test_the_end_token_ends_a_reply_unless_ignored(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    eos = min(engine.tokenizer.eos_ids)
    ids = [*letters(engine, "ab"), eos, *letters(engine, "cd")]
    script(engine, monkeypatch, ids * 2)
    reply = engine.generate([5], SamplingParams(max_tokens=5))
    assert (reply.text, reply.finish_reason, reply.token_ids) == ("ab", "stop", tuple(ids[:3]))
    script(engine, monkeypatch, ids)
    reply = engine.generate([5], SamplingParams(max_tokens=5, ignore_eos=True))
    assert (reply.text, reply.finish_reason, reply.token_ids) == ("abcd", "length", tuple(ids))


def test_max_tokens_of_one(engine: Engine) -> None:
    reply = engine.generate([5, 6], SamplingParams(max_tokens=1, ignore_eos=True))
    assert (reply.completion_tokens, len(reply.token_ids), reply.finish_reason) == (1, 1, "length")


@pytest.mark.parametrize("max_tokens", [None, 1000])
@pytest.mark.parametrize("prompt_tokens", [1, 99])
def test_a_reply_ends_with_the_context(
    tiny_gqa: PackedModel, prompt_tokens: int, max_tokens: int | None
) -> None:
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1, context_tokens=100) as engine:
        reply = engine.generate([9] * prompt_tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
        assert (reply.completion_tokens, reply.finish_reason) == (100 - prompt_tokens, "length")
        assert_nothing_is_held(engine)


def test_a_prompt_as_long_as_the_context_is_refused(tiny_gqa: PackedModel) -> None:
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1, context_tokens=100) as engine:
        with pytest.raises(
            InvalidRequestError, match=r"has 100 tokens.* context of 100 tokens must"
        ) as error:
            engine.generate([9] * 100)
        assert error.value.code == "context_length_exceeded"
        assert engine.stats().requests_total == 0


def test_a_kv_budget_below_the_context_limits_it_and_says_so(tiny_gqa: PackedModel) -> None:
    page_bytes = tiny_gqa.native().global_page_bytes
    with Engine(tiny_gqa, kv_memory_bytes=2 * page_bytes + 1, threads=1) as engine:
        assert engine.context_tokens == 2 * PAGE_TOKENS
        reply = engine.generate([9] * 100, SamplingParams(ignore_eos=True))
        assert (reply.completion_tokens, reply.finish_reason) == (28, "length")
        with pytest.raises(InvalidRequestError, match="raise --kv-memory"):
            engine.generate([9] * 128)
    with pytest.raises(CapacityError, match=f"{page_bytes - 1} bytes holds no page of {page_bytes}"):
        Engine(tiny_gqa, kv_memory_bytes=page_bytes - 1, threads=1)


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "empty"), ([5, -1], "-1 is outside"), ([5, 320], "320 is outside the vocabulary of 320")],
)
def test_a_prompt_that_cannot_be_computed_is_refused(engine: Engine, ids: list[int], message: str) -> None:
    listener = Listener()
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        engine.submit(ids, SamplingParams(), listener)
    assert not listener.events
    # One bad prompt of a batch: those before it do not run on.
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        engine.generate_batch([[5], [6], ids], SamplingParams(ignore_eos=True))


def test_seeds_repeat_and_differ(engine: Engine) -> None:
    def reply(seed: int | None) -> tuple[int, ...]:
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=30, ignore_eos=True)
        return engine.generate([5, 6, 7], params).token_ids

    assert reply(3) == reply(3)
    assert reply(2**64 - 1) == reply(2**64 - 1)
    assert len({reply(seed) for seed in (0, 1, 2**32, 2**63, None, None)}) == 6


def test_the_text_is_that_of_the_tokens(engine: Engine) -> None:
    for seed in range(8):
        params = SamplingParams(temperature=2.0, seed=seed, max_tokens=100, ignore_eos=True)
        reply = engine.generate([5, 6, 7], params)
        assert reply.text == engine.tokenizer.decode(reply.token_ids)


def test_characters_of_many_bytes_are_never_split(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "né 你好 👩‍👧 ß"
    script(engine, monkeypatch, letters(engine, text))
    params = SamplingParams(max_tokens=len(text.encode()), ignore_eos=True)
    pieces = [event.text for event in engine.stream([5], params)]
    assert "".join(pieces) == text
    assert len(pieces) == len(text.encode())
    assert max(map(len, pieces)) == 1


def test_a_character_cut_by_the_end_shows_as_one_replacement(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(engine, monkeypatch, letters(engine, "a好"))
    reply = engine.generate([5], SamplingParams(max_tokens=3, ignore_eos=True))
    assert (reply.text, reply.finish_reason) == ("a\ufffd", "length")
