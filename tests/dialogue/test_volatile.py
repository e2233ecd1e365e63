from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import ReplyStore
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.volatile import PlacedMessages, VolatileInsert, VolatileStore, parse_volatile
from duologue.errors import InvalidRequestError
from tests.dialogue.recut import recut
from tests.dialogue.test_template import chat

SYSTEM = {"role": "system", "content": "You are Ada."}


def lore(text: str, placement: str = "freeze") -> dict[str, Any]:
    return {"role": "system", "content": text, "placement": placement}


def place(
    store: VolatileStore, messages: list[dict[str, Any]], volatile: Any = None, **options: Any
) -> PlacedMessages:
    return store.place(messages, parse_volatile(volatile), **{"key": "d", **options})


def contents(placed: PlacedMessages) -> list[str]:
    return [message["content"] for message in placed.messages]  # type: ignore[index]


@pytest.fixture
def play(
    smollm2: Tokenizer, smollm2_template: ChatTemplate
) -> Callable[[VolatileStore, str, int], list[tuple[int, int, int]]]:
    """Plays a dialogue whose client sends its current insert on each turn; gives, per later turn, the tokens in
    common with the prompt and reply before, how many those were, and how many the prompt before alone."""

    def run(store: VolatileStore, placement: str, turns: int) -> list[tuple[int, int, int]]:
        pieces = PieceEncoder(smollm2)
        replies = ReplyStore(pieces)
        history: list[dict[str, Any]] = [SYSTEM]
        cached: list[int] = []
        prompt: list[int] = []
        rows = []
        for turn in range(turns):
            history.append({"role": "user", "content": f"Message {turn}, please."})
            placed = place(store, history, [lore(f"It is day {turn}.", placement)])
            ids = encode_dialogue(smollm2_template, pieces, placed.messages, replies=replies).ids.tolist()
            if cached:
                pairs = enumerate(zip(cached, ids, strict=False))
                common = next((i for i, (one, other) in pairs if one != other), min(len(cached), len(ids)))
                rows.append((common, len(cached), len(prompt)))
            text = f"The reply to {turn},\n\n and that is it."
            reply = recut(smollm2, text)
            replies.remember(b"", ids, text, reply)
            prompt, cached = ids, ids + reply
            history.append({"role": "assistant", "content": text})
        return rows

    return run


def test_frozen_inserts_leave_every_prompt_a_prefix_of_the_next(play: Any) -> None:
    rows = play(VolatileStore(), "freeze", 8)
    assert len(rows) == 7
    assert all(common == cached for common, cached, _ in rows)


def test_where_an_insert_for_one_turn_stood_is_known_as_long_as_its_dialogue() -> None:
    store = VolatileStore()
    first = [SYSTEM, {"role": "user", "content": "One?"}]
    then = [*first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Two?"}]
    for key in ("d", None):
        assert place(store, first, [lore("x", "tail")], key=key).passed == frozenset()
        assert place(store, first, [lore("x", "tail")], key=key).passed == frozenset()
        assert place(store, first, [lore("y", "tail")], key=key, remember=False).passed == {1}
        assert place(store, then, key=key).passed == {1}
        assert contents(place(store, then, key=key)) == [message["content"] for message in then]
        assert place(store, then, key="e").passed == frozenset()
        assert place(store, then, key=key, salt=b"other").passed == frozenset()
    store.forget_key(b"", "d")
    assert place(store, then).passed == frozenset()
    assert place(store, then, key=None).passed == {1}
    store.forget(b"")
    assert place(store, then, key=None).passed == frozenset()
    assert len(store) == 0


def test_tail_inserts_cost_the_last_reply_and_no_more(play: Any, smollm2: Tokenizer) -> None:
    insert = len(smollm2.encode("<|im_start|>system\nIt is day 0.<|im_end|>\n", parse_special=True))
    header = len(smollm2.encode("<|im_start|>assistant\n", parse_special=True))
    for common, cached, prompt in play(VolatileStore(), "tail", 8):
        assert common < cached
        assert prompt - insert - header <= common < prompt


def test_a_store_that_lost_an_insert_is_a_clean_miss(play: Any) -> None:
    rows = play(VolatileStore(budget_bytes=0), "freeze", 5)
    assert all(common < cached for common, cached, _ in rows)


def test_where_inserts_stand() -> None:
    store = VolatileStore()
    first = place(store, [SYSTEM, *chat("a")], [lore("L1"), lore("T1", "tail"), lore("L2")])
    assert contents(first) == ["You are Ada.", "L1", "L2", "a", "T1"]
    assert first.origins == (0, None, None, 1, None)
    assert first.messages[1] == {"role": "system", "content": "L1"}
    second = place(store, [SYSTEM, *chat("a", "b", "c")], [lore("L3")])
    assert contents(second) == ["You are Ada.", "L1", "L2", "a", "b", "L3", "c"]
    third = place(store, [SYSTEM, *chat("a", "b", "c", "d", "e")], [])
    assert contents(third) == ["You are Ada.", "L1", "L2", "a", "b", "L3", "c", "d", "e"]
    assert third.origins == (0, None, None, 1, 2, None, 3, 4, 5)


def test_a_client_that_trims_replies_keeps_its_inserts() -> None:
    store = VolatileStore()
    place(store, chat("a", " b\n", "c"), [lore("L")])
    assert contents(place(store, chat("a", "b", "c", "d", "e"))) == ["a", "b", "L", "c", "d", "e"]


def test_a_tail_insert_stays_put_while_tools_run() -> None:
    store = VolatileStore()
    tools = [{"role": "assistant", "content": None, "tool_calls": [{}]}, {"role": "tool", "content": "42"}]
    placed = place(store, [*chat("a"), *tools], [lore("T", "tail")])
    assert placed.origins == (0, None, 1, 2)


def test_regenerating() -> None:
    store = VolatileStore()
    messages = chat("a", "b", "c")
    place(store, messages, [lore("L")])
    assert contents(place(store, messages, [lore("L")])) == ["a", "b", "L", "c"]
    assert contents(place(store, messages)) == ["a", "b", "L", "c"]
    assert contents(place(store, messages, [lore("new")])) == ["a", "b", "new", "c"]
    assert contents(place(store, chat("a", "b", "c", "d", "e"))) == ["a", "b", "new", "c", "d", "e"]
    assert contents(place(store, messages, [])) == ["a", "b", "c"]
    assert contents(place(store, messages)) == ["a", "b", "c"]
    assert len(store) == 0


def test_looking_up_changes_nothing() -> None:
    store = VolatileStore()
    messages = chat("a", "b", "c")
    assert contents(place(store, messages, [lore("L")], remember=False)) == ["a", "b", "L", "c"]
    assert len(store) == 0
    place(store, messages, [lore("L")])
    assert contents(place(store, messages, [lore("other")], remember=False)) == ["a", "b", "other", "c"]
    assert contents(place(store, messages)) == ["a", "b", "L", "c"]


def test_an_edit_ends_what_was_frozen_behind_it() -> None:
    store = VolatileStore()
    place(store, chat("a"), [lore("L1")])
    place(store, chat("a", "b", "c"), [lore("L2")])
    assert contents(place(store, chat("a", "B!", "c", "d", "e"))) == ["L1", "a", "B!", "c", "d", "e"]
    assert contents(place(store, chat("A!", "b", "c"))) == ["A!", "b", "c"]
    assert contents(place(store, chat("a", "b", "c"))) == ["L1", "a", "b", "L2", "c"]


def test_dialogues_and_tenants_are_apart() -> None:
    store = VolatileStore()
    for key, salt in (("one", b"a"), ("two", b"a"), ("one", b"b")):
        place(store, chat("hi"), [lore(f"{key}{salt!r}")], key=key, salt=salt)
    assert contents(place(store, chat("hi"), key="one", salt=b"a")) == ["oneb'a'", "hi"]
    assert contents(place(store, chat("hi"), key="three", salt=b"a")) == ["hi"]
    assert contents(place(store, chat("hi"), key=None, salt=b"a")) == ["hi"]
    store.forget_key(b"a", "one")
    assert contents(place(store, chat("hi"), key="one", salt=b"a")) == ["hi"]
    assert contents(place(store, chat("hi"), key="two", salt=b"a")) == ["twob'a'", "hi"]
    store.forget(b"a")
    assert len(store) == 1
    assert contents(place(store, chat("hi"), key="one", salt=b"b")) == ["oneb'b'", "hi"]


def test_the_budget_holds() -> None:
    store = VolatileStore(budget_bytes=10_000)
    for number in range(100):
        place(store, chat(f"hi {number}"), [lore("x" * 100)], key=str(number % 7))
        assert store.used_bytes <= 10_000
    assert 5 < len(store) < 50
    assert contents(place(store, chat("hi 0"), key="0")) == ["hi 0"]
    assert contents(place(store, chat("hi 99"), key="1")) == ["x" * 100, "hi 99"]
    place(store, chat("big"), [lore("x" * 20_000)], key="1")
    assert contents(place(store, chat("big"), key="1")) == ["big"]


def test_what_cannot_be_placed() -> None:
    store = VolatileStore()
    with pytest.raises(InvalidRequestError, match="prompt_cache_key"):
        place(store, chat("a"), [lore("L")], key=None)
    assert contents(place(store, chat("a"), [lore("T", "tail")], key=None)) == ["a", "T"]
    with pytest.raises(InvalidRequestError, match="need a user message"):
        place(store, [SYSTEM], [lore("L")])
    assert contents(place(store, [SYSTEM], [])) == ["You are Ada."]


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("x", "volatile"), ({}, "volatile"), (7, "volatile"), ([lore("x")] * 65, "volatile"),
        (["x"], "volatile[0]"), ([lore("x"), {"text": "x"}], "volatile[1]"),
        ([{"role": "tool", "content": "x"}], "volatile[0].role"),
        ([{"role": ["x"], "content": "x"}], "volatile[0].role"),
        ([{"role": "system", "content": ""}], "volatile[0].content"), ([{}], "volatile[0].content"),
        ([{"content": "x", "placement": "depth"}], "volatile[0].placement"),
        ([{"content": "x", "placement": []}], "volatile[0].placement"),
    ],
)  # fmt: skip
def test_malformed_fields_are_named(value: object, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_volatile(value)
    assert caught.value.param == param


def test_defaults_of_the_field() -> None:
    assert parse_volatile(None) is None
    assert parse_volatile([]) == ()
    assert parse_volatile([{"content": "x"}]) == (VolatileInsert("system", "x", "freeze"),)
