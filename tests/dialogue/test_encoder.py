from __future__ import annotations

import random
from typing import Any

import pytest

from duologue.dialogue.encoder import DialogueEncoder
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.truncation import Truncation
from duologue.dialogue.volatile import VolatileInsert, parse_volatile
from duologue.errors import InvalidRequestError
from tests.dialogue.recut import recut
from tests.dialogue.test_template import chat

SYSTEM = {"role": "system", "content": "You are Ada, who mends clocks and tells of each one that she mended."}
TRUNCATION = Truncation(limit_tokens=800, step_tokens=300, reserve_tokens=120)
WORDS = ["the", "clock", "naïve", "\n\n", "that,", "it's", "1887", "mends", "“so”", "\U0001f600"]


@pytest.fixture
def encoder(smollm2: Tokenizer, smollm2_template: ChatTemplate) -> DialogueEncoder:
    return DialogueEncoder(smollm2_template, smollm2, TRUNCATION)


def words(choose: random.Random, count: int) -> str:
    return " ".join(choose.choices(WORDS, k=count))


def common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("recuts", [False, True])
@pytest.mark.parametrize("with_inserts", [False, True])
def test_a_long_dialogue_stays_warm_past_its_context(
    smollm2: Tokenizer, encoder: DialogueEncoder, recuts: bool, with_inserts: bool
) -> None:
    """Prompts fit, leave half of the reserve, and go on where the last one ended, but for one cut per step."""
    choose = random.Random(1)
    messages: list[dict[str, Any]] = [SYSTEM]
    before: list[int] = []
    prompt_tokens = reused_tokens = breaks = dropped = 0
    for turn in range(60):
        messages.append({"role": "user", "content": words(choose, 12)})
        inserts = parse_volatile([{"content": f"It is day {turn}."}]) if with_inserts else None
        encoded = encoder.encode(messages, truncation="auto", volatile=inserts, key="d")
        ids = encoded.ids.tolist()
        assert len(ids) <= TRUNCATION.limit_tokens - TRUNCATION.reserve_tokens // 2
        same = common(before, ids)
        if same < len(before):
            breaks += 1
            assert smollm2.decode(ids[:same]).startswith("system\n" + SYSTEM["content"])
        kept = [origin for origin in encoded.origins if origin is not None]
        assert kept[0] == 0
        assert kept[1:] == list(range(kept[1], len(messages)))
        assert messages[kept[1]]["role"] == "user"
        assert kept[1] >= dropped
        dropped = kept[1]
        if with_inserts:
            assert encoded.origins[1] is None, "the insert of a turn goes with that turn"
        prompt_tokens += len(ids)
        reused_tokens += same
        text = words(choose, 10)
        reply = recut(smollm2, text, turn) if recuts else smollm2.encode(text)
        encoder.remember(encoded, text, reply, key="d")
        before = ids + reply
        messages.append({"role": "assistant", "content": text})
    assert dropped > 60
    whole = encoder.encode(messages, key="d")  # too long for the context, and with all the inserts
    steps = -(-len(whole.ids) // TRUNCATION.step_tokens)
    # Ids that are twice what their text needs do not fit into the reserve, and some are given up in between.
    assert breaks <= steps + (3 if recuts else 0)
    assert reused_tokens > 0.7 * prompt_tokens


def test_disabled_truncation_cuts_nothing(smollm2_template: ChatTemplate, smollm2: Tokenizer) -> None:
    encoder = DialogueEncoder(smollm2_template, smollm2, Truncation(100, 40, 20))
    messages = chat(*["word " * 20] * 9)
    encoded = encoder.encode(messages)
    assert encoded.ids.tolist() == smollm2_template.encode_chat(smollm2, messages)
    assert len(encoded.ids) > 100
    assert len(encoder.encode(messages, truncation="auto").ids) <= 90
    assert encoder.encode(messages, truncation="auto").origins == (8,)


def test_where_the_context_ends_replies_are_encoded_from_their_text(
    smollm2_template: ChatTemplate, smollm2: Tokenizer
) -> None:
    text = "clockwork " * 20
    messages = chat("a", text, "b")
    canonical = smollm2_template.encode_chat(smollm2, messages)
    encoder = DialogueEncoder(smollm2_template, smollm2, Truncation(len(canonical) + 5, 20, 10))
    encoder.remember(encoder.encode(chat("a")), text, recut(smollm2, text))
    assert encoder.encode(messages).ids.tolist() == canonical


def test_a_message_that_cannot_fit(encoder: DialogueEncoder) -> None:
    messages = [SYSTEM, *chat("a", "b", "word " * 700)]
    with pytest.raises(InvalidRequestError, match="shorten the last message") as caught:
        encoder.encode(messages, truncation="auto")
    assert caught.value.code == "context_length_exceeded"


def test_counts_that_a_template_defies_cut_further(smollm2: Tokenizer) -> None:
    """It writes every message twice once there are six, which small dialogues do not show."""
    template = ChatTemplate(
        "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}"
        "{% if messages | length > 5 %}{{ m.content }}{% endif %}{% endfor %}"
    )
    encoder = DialogueEncoder(template, smollm2, Truncation(200, 60, 20))
    for count in range(1, 40, 2):
        encoded = encoder.encode(chat(*["one two three four five"] * count), truncation="auto")
        assert len(encoded.ids) <= 190
    with pytest.raises(InvalidRequestError, match="context"):
        encoder.encode([*[SYSTEM] * 8, *chat("a")], truncation="auto")


def test_user_inserts_begin_no_turn_of_their_own(encoder: DialogueEncoder) -> None:
    inserts = [VolatileInsert("user", "Frozen."), VolatileInsert("user", "Last.", "tail")]
    messages = chat(*["word " * 100] * 11)
    encoded = encoder.encode(messages, truncation="auto", volatile=inserts, key="d")
    assert encoded.origins[-3:] == (None, 10, None)
    assert encoded.origins[0] is not None


def test_continuing_and_forgetting(smollm2: Tokenizer, encoder: DialogueEncoder) -> None:
    first = encoder.encode(chat("Hi"), salt=b"s", key="k")
    encoder.remember(first, "Once up", recut(smollm2, "Once up"), salt=b"s", key="k")
    opened = encoder.encode(chat("Hi", "Once up"), salt=b"s", key="k", continue_final_message=True)
    assert opened.ids.tolist() == first.ids.tolist() + recut(smollm2, "Once up")
    encoder.remember(opened, "on a time", recut(smollm2, "on a time"), salt=b"s", key="k")
    messages = chat("Hi", "Once upon a time", "And?")
    later = encoder.encode(messages, salt=b"s", key="k")
    expected = opened.ids.tolist() + recut(smollm2, "on a time")
    assert later.ids[: len(expected)].tolist() == expected
    canonical = encoder.encode(messages, salt=b"other").ids.tolist()
    assert canonical[: len(expected)] != expected
    encoder.forget_key(b"s", "k")
    assert encoder.encode(messages, salt=b"s", key="k").ids.tolist() == canonical
    encoder.remember(first, "Once upon a time", recut(smollm2, "Once upon a time"), salt=b"s")
    assert encoder.encode(messages, salt=b"s").spliced
    encoder.forget(b"s")
    assert not encoder.encode(messages, salt=b"s").spliced


def test_memory_is_bounded(smollm2: Tokenizer, smollm2_template: ChatTemplate) -> None:
    encoder = DialogueEncoder(smollm2_template, smollm2, TRUNCATION, memory_bytes=100_000)
    for turn in range(100):
        inserts = parse_volatile([{"content": "note " * 20}])
        encoded = encoder.encode(chat(f"{turn} " * 30), truncation="auto", volatile=inserts, key=str(turn))
        encoder.remember(encoded, f"{turn} " * 40, smollm2.encode(f"{turn} " * 40))
        assert 0 < encoder.memory_bytes <= 100_000
    assert encoder.memory_bytes > 50_000
