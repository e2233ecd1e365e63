from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.token_counter import TokenCounter
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.truncation import Cut, Truncation, find_cut, truncation_mode
from duologue.errors import InvalidRequestError
from tests.dialogue.test_template import TEMPLATES, chat

TRUNCATION = Truncation(limit_tokens=1_000, step_tokens=300, reserve_tokens=100)
TURN = st.tuples(
    st.integers(0, 120), st.lists(st.tuples(st.sampled_from(("assistant", "tool", "system")), st.integers(0, 60)), max_size=3)
)  # fmt: skip


def flat(
    pinned: list[int], opening: list[int], turns: list[tuple[int, list[tuple[str, int]]]]
) -> tuple[list[str], list[int]]:
    roles = ["system"] * len(pinned) + ["assistant"] * len(opening)
    tokens = [*pinned, *opening]
    for user, rest in turns:
        roles += ["user", *(role for role, _ in rest)]
        tokens += [user, *(count for _, count in rest)]
    return roles, tokens


@st.composite
def growing(draw: st.DrawFn) -> list[tuple[list[str], list[int]]]:
    """The same dialogue at each of its turns. No turn is so large that it alone fills what a cut leaves."""
    pinned = draw(st.lists(st.integers(0, 80), max_size=2))
    opening = draw(st.lists(st.integers(0, 50), max_size=1))
    turns = draw(st.lists(TURN, min_size=1, max_size=40))
    assume(all(sum(pinned) + user + sum(n for _, n in rest) <= 600 for user, rest in turns))
    return [flat(pinned, opening, turns[:count]) for count in range(1, len(turns) + 1)]


@given(growing())
def test_what_is_cut(dialogue: list[tuple[list[str], list[int]]]) -> None:
    before = Cut(0, 0, 0, 0)
    moves, begin_total = 0, 0
    for number, (roles, tokens) in enumerate(dialogue):
        cut = find_cut(TRUNCATION, roles, tokens)
        assert cut == find_cut(TRUNCATION, list(roles), list(tokens))
        places = cut.kept(len(roles))
        kept_roles, kept_tokens = [roles[i] for i in places], [tokens[i] for i in places]
        # The limit holds, and truncating the result changes nothing.
        assert cut.kept_tokens == sum(kept_tokens) <= TRUNCATION.budget_tokens
        assert cut.removed_tokens == sum(tokens) - sum(kept_tokens)
        again = find_cut(TRUNCATION, kept_roles, kept_tokens)
        assert again.kept(len(places)) == list(range(len(places)))
        # Whole turns, none of the pinned part, and not the last turn.
        assert cut.last == cut.first or roles[cut.last] == "user"
        assert all(role == "system" for role in roles[: cut.first])
        assert cut.last <= max((i for i, role in enumerate(roles) if role == "user"), default=0)
        # Never backwards, and where it stays, the kept messages begin alike.
        assert cut.last >= before.last
        if number and cut.last == before.last:
            assert places[: len(before.kept(len(dialogue[number - 1][0])))] == before.kept(
                len(dialogue[number - 1][0])
            )
        elif number:
            moves += 1
            begin_total = begin_total or sum(tokens)
        before = cut
    if moves:
        assert moves <= 1 + (sum(dialogue[-1][1]) - begin_total) // TRUNCATION.step_tokens + 1


def test_the_cut_stays_still_for_a_step() -> None:
    """Turns of 30 tokens: past the budget of 900, ten turns go at once, and the next ten after ten more."""
    cuts = [
        find_cut(TRUNCATION, *flat([30], [], [(10, [("assistant", 20)])] * count)).last
        for count in range(1, 61)
    ]
    assert cuts == [1] * 29 + [21] * 10 + [41] * 10 + [61] * 10 + [81]
    naive = Truncation(1_000, 1, 100)
    moving = [
        find_cut(naive, *flat([30], [], [(10, [("assistant", 20)])] * count)).last for count in range(30, 40)
    ]
    assert moving == [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]


def test_an_opening_reply_is_the_oldest_turn() -> None:
    roles = ["system", "assistant", "user", "assistant", "user"]
    cut = find_cut(TRUNCATION, roles, [100, 400, 200, 200, 100])
    assert (cut.first, cut.last, cut.removed_tokens) == (1, 2, 400)


@pytest.mark.parametrize(
    ("roles", "tokens", "fixed"),
    [
        (["user"], [901], 0), (["user"], [900], 1), (["system", "user"], [500, 401], 0),
        (["system"], [901], 0), (["user", "assistant", "user"], [5, 5, 901], 0), ([], [], 901),
    ],
)  # fmt: skip
def test_a_last_turn_that_does_not_fit(roles: list[str], tokens: list[int], fixed: int) -> None:
    with pytest.raises(InvalidRequestError, match="901") as caught:
        find_cut(TRUNCATION, roles, tokens, fixed)
    assert caught.value.code == "context_length_exceeded"


def test_pinned_by_count_and_extra_steps() -> None:
    roles, tokens = flat([30, 30], [], [(10, [("assistant", 20)])] * 29)
    assert find_cut(TRUNCATION, roles, tokens).last == 2 + 20
    unpinned = find_cut(TRUNCATION, roles, tokens, pinned=1)
    assert (unpinned.first, unpinned.removed_tokens) == (1, 300)
    assert find_cut(TRUNCATION, roles, tokens, extra_steps=1).removed_tokens == 600
    with pytest.raises(InvalidRequestError, match="shorten"):
        find_cut(TRUNCATION, roles, tokens, extra_steps=2)


def test_sizes_are_checked() -> None:
    for sizes in ((0, 1, 1), (100, 1, 0), (100, 1, 100), (100, 0, 10), (100, 91, 10), (100, -1, 10)):
        with pytest.raises(InvalidRequestError, match="tokens"):
            Truncation(*sizes)
    for limit in (2, 3, 10, 8_192, 131_072):
        assert Truncation.of_context(limit).budget_tokens > 0
    assert Truncation.of_context(8_192) == Truncation(8_192, 4_096, 1_024)


def test_the_request_field() -> None:
    assert (truncation_mode(None), truncation_mode("auto"), truncation_mode("disabled")) == (
        "disabled", "auto", "disabled"
    )  # fmt: skip
    for value in ("on", True, 7, {"type": "auto"}):
        with pytest.raises(InvalidRequestError, match="'auto' or 'disabled'") as caught:
            truncation_mode(value)
        assert caught.value.param == "truncation"


@pytest.fixture(scope="module")
def counter(smollm2: Tokenizer, smollm2_template: ChatTemplate) -> TokenCounter:
    return TokenCounter(smollm2_template, smollm2)


@settings(deadline=None)
@given(
    system=st.none() | st.text(max_size=20),
    contents=st.lists(
        st.text(max_size=20) | st.sampled_from(["\n\n", " x", "<|im_end|>"]), min_size=1, max_size=8
    ),
)
def test_the_count_is_a_little_above_what_the_prompt_has(
    smollm2: Tokenizer,
    smollm2_template: ChatTemplate,
    counter: TokenCounter,
    system: str | None,
    contents: list[str],
) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system is not None else []
    messages += chat(*contents)
    real = len(smollm2_template.encode_chat(smollm2, messages))
    assert real <= counter.count(messages).total <= real + 12 + 3 * len(messages)


def test_the_count_of_a_message_depends_on_it_alone(counter: TokenCounter) -> None:
    messages = chat("Hi", "Hello there.", "How are you?")
    counts = counter.count(messages)
    assert counter.count(messages[1:]).messages == counts.messages[1:]
    assert counter.count(messages).total == counts.total


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_every_kind_can_be_counted(smollm2: Tokenizer, name: str) -> None:
    template = ChatTemplate(TEMPLATES[name])
    messages = [*chat("a b c", "d e f", "g"), {"role": "tool", "content": "1", "tool_call_id": "z" * 40}]
    tools = [{"type": "function", "function": {"name": "f" * 30}}]
    real = len(template.encode_chat(smollm2, messages, tools=tools))
    assert TokenCounter(template, smollm2).count(messages, tools).total >= real


def test_tools_count(smollm2: Tokenizer) -> None:
    template = ChatTemplate(
        "{{ raise_exception('alternate') if messages | length > 1 }}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}"
    )
    counter = TokenCounter(template, smollm2)
    tools = [{"type": "function", "function": {"name": f"look_up_{i}"}} for i in range(9)]
    messages = chat("Hi")
    assert counter.count(messages, tools).total >= len(template.encode_chat(smollm2, messages, tools=tools))
    assert counter.count(messages, tools).fixed > counter.count(messages).fixed + 50
