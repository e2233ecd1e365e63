"""The texts and the order of the benchmark's dialogues, without any server."""

from __future__ import annotations

import hashlib
import json
import random
import statistics
from dataclasses import asdict, replace

import pytest

from duologue.bench.dialogue_words import WORDS, make_text
from duologue.bench.dialogue_workload import (
    DialogueState,
    Length,
    WorkloadSpec,
    make_dialogues,
    make_persona,
)


def test_texts_have_as_many_words_as_asked_for() -> None:
    generator = random.Random(1)
    for words in (1, 2, 7, 40, 300):
        text = make_text(generator, words)
        assert len(text.split()) == words
        assert text[0].isupper()
        assert text.endswith(".")
    assert len(set(WORDS)) == len(WORDS)
    with pytest.raises(ValueError, match="at least one word"):
        make_text(generator, 0)


def test_a_seed_gives_the_same_dialogues_on_every_machine() -> None:
    spec = WorkloadSpec(
        dialogues=3,
        turns=4,
        message_words=Length(20, 0.5),
        history_turns=1,
        regenerate_rate=0.3,
        edit_rate=0.3,
    )
    data = json.dumps([asdict(script) for script in make_dialogues(spec)]).encode()
    assert hashlib.sha256(data).hexdigest()[:16] == "7d60d334535397e9"
    assert make_dialogues(spec) != make_dialogues(replace(spec, seed=1))


def test_more_dialogues_do_not_change_the_first_ones() -> None:
    spec = WorkloadSpec(dialogues=2, turns=2)
    assert make_dialogues(replace(spec, dialogues=5))[:2] == make_dialogues(spec)


def test_personas_are_shared_or_own_or_absent() -> None:
    spec = WorkloadSpec(dialogues=3, turns=1, persona_words=50)
    shared = [script.opening for script in make_dialogues(spec)]
    assert shared[0] == shared[1] == ({"role": "system", "content": make_persona(spec)},)
    own = [script.opening for script in make_dialogues(replace(spec, persona="own"))]
    assert len({opening[0]["content"] for opening in own}) == 3
    assert len(own[0][0]["content"].split()) == 50
    assert make_dialogues(replace(spec, persona="none"))[0].opening == ()


def test_messages_of_different_dialogues_differ() -> None:
    scripts = make_dialogues(WorkloadSpec(dialogues=24, turns=14))
    texts = [step.text for script in scripts for step in script.steps]
    assert len(set(texts)) == 24 * 14
    assert {len(text.split()) for text in texts} == {40}
    assert {step.reply_tokens for script in scripts for step in script.steps} == {32}


def test_lengths_are_log_normal_around_their_median() -> None:
    generator = random.Random(3)
    drawn = [Length(100, 0.6).draw(generator) for _ in range(4000)]
    assert 95 <= statistics.median(drawn) <= 105
    assert statistics.mean(drawn) > 110  # the right tail: exp(0.18) = 1.2 times the median
    assert all(1 <= length <= 2000 for length in drawn)
    assert Length.parse("40:0.6") == Length(40, 0.6)
    assert Length.parse("40") == Length(40)
    for wrong in ("", "x", "0", "5:-1", "5:x", "1.5"):
        with pytest.raises(ValueError, match="not a length"):
            Length.parse(wrong)


def test_rates_decide_how_often_replies_are_regenerated_and_messages_edited() -> None:
    spec = WorkloadSpec(dialogues=100, turns=10, regenerate_rate=0.3, edit_rate=0.1)
    kinds = [step.kind for script in make_dialogues(spec) for step in script.steps]
    assert kinds.count("message") == 1000
    assert 250 < kinds.count("regenerate") < 350
    assert 70 < kinds.count("edit") < 130


@pytest.mark.parametrize(
    "fields",
    [
        {"dialogues": 0}, {"turns": 0}, {"persona_words": 0}, {"history_turns": -1}, {"edit_rate": 1.5},
        {"regenerate_rate": -0.1},
    ],
)  # fmt: skip
def test_contradictions_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"at least|between|negative"):
        WorkloadSpec(**fields)  # type: ignore[arg-type]


def test_what_was_processed_before_follows_the_dialogue() -> None:
    spec = WorkloadSpec(dialogues=1, turns=2, persona_words=5, regenerate_rate=1, edit_rate=1)
    (script,) = make_dialogues(spec)
    assert [step.kind for step in script.steps] == ["message", "regenerate", "edit"] * 2
    state = DialogueState(script)

    messages, processed = state.messages()
    assert [message["role"] for message in messages] == ["system", "user"]
    assert processed == 0
    state.replied("one", 100, 10)
    regenerated, processed = state.messages()
    assert regenerated == messages
    assert processed == 99  # all of the prompt but the token whose logits are needed
    state.replied("two", 100, 11)
    edited, processed = state.messages()
    assert edited[0] == messages[0]
    assert edited[1] != messages[1]
    assert processed == 0
    state.replied("three", 101, 12)

    messages, processed = state.messages()
    assert [message["content"] for message in messages[1:3]] == [script.steps[2].text, "three"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert processed == 101 + 12 - 1  # the last token of the reply was sampled, not processed
    state.replied("four", 150, 10)
    assert state.messages()[1] == 149
    state.replied("five", 150, 10)
    edited, processed = state.messages()
    assert processed == 112
    assert edited[:3] == messages[:3]
    state.replied("six", 150, 10)
    assert state.step is None
