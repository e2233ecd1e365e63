from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.dialogue.stop import StopMatcher
from duologue.errors import InvalidRequestError

STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=6)
PIECES = st.lists(st.text("ab\nc", max_size=4), max_size=20)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What may be shown of the whole text, by the definition."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            longest = max(met, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown, met = [], None
    for piece in pieces:
        emit, matched = matcher.push(piece)
        shown.append(emit)
        met = met or matched
    shown.append(matcher.flush())
    return shown, met


@settings(deadline=None)
@given(STOPS, PIECES)
def test_agrees_with_naive_search(stops: list[str], pieces: list[str]) -> None:
    shown, met = run(stops, pieces)
    assert ("".join(shown), met) == naive("".join(pieces), stops)


@settings(deadline=None)
@given(STOPS, PIECES)
def test_nothing_shown_has_to_be_taken_back_and_nothing_is_held_needlessly(
    stops: list[str], pieces: list[str]
) -> None:
    matcher = StopMatcher(stops)
    text = shown = ""
    for piece in pieces:
        emit, matched = matcher.push(piece)
        text += piece
        shown += emit
        if matched:
            break
        held = text[len(shown) :]
        assert shown + held == text
        assert not held or any(stop.startswith(held) for stop in stops)
        ends = [text[i:] for i in range(len(text)) if any(stop.startswith(text[i:]) for stop in stops)]
        assert held == max(ends, key=len, default="")


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "met"),
    [
        (["</s>"], ["a<", "/", "s", ">b"], "a", "</s>"),
        (["</s>"], ["a</", "s", "x"], "a</sx", None),
        (["\n\nUser:"], ["Hi.\n", "\n", "Us", "er: x"], "Hi.", "\n\nUser:"),
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),
        (["abcd", "bc"], ["abcd"], "a", "bc"),
        (["bc", "abc"], ["abc"], "", "abc"),
        ([], ["a", "b"], "ab", None),
        (["b"], ["a", "b", "c", "b"], "a", "b"),
    ],
)
def test_examples(stops: list[str], pieces: list[str], shown: str, met: str | None) -> None:
    out, matched = run(stops, pieces)
    assert ("".join(out), matched) == (shown, met)


def test_after_a_match_nothing_more_comes() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", "x")
    assert matcher.push("c") == ("", None)
    assert matcher.flush() == ""


def test_an_empty_stop_string_is_a_request_error() -> None:
    with pytest.raises(InvalidRequestError, match="empty") as caught:
        StopMatcher(["a", ""])
    assert caught.value.param == "stop"


def test_a_thousand_stop_strings_are_read_in_one_pass() -> None:
    stops = [f"stop{i:04d}" for i in range(1000)]
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece)[0] for piece in ["stop", "000"] * 5000)
    assert shown + matcher.flush() == "stop000" * 5000
    assert StopMatcher(stops).push("xstop0999") == ("x", "stop0999")
