from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.dialogue.special_splitter import SpecialSplitter
from duologue.dialogue.vocabulary import SpecialToken

SPELLINGS = ("<|a|>", "<|b|>", "<|a|><|b|>", "<|ab|>", "|>", "aba", "ab", "bab")


def by_turns(text: str, tokens: list[SpecialToken]) -> list[int | str]:
    """The definition: the longest token is cut out everywhere, then the next."""
    pieces: list[int | str] = [text]
    for token in sorted(tokens, key=lambda t: (-len(t.text), t.id)):
        while True:
            at = next((i for i, p in enumerate(pieces) if isinstance(p, str) and token.text in p), None)
            if at is None:
                break
            before, _, after = str(pieces[at]).partition(token.text)
            pieces[at : at + 1] = [before, token.id, after]
    return [piece for piece in pieces if piece != ""]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from((*SPELLINGS, "<", "|", ">", "a", "b", " "))).map("".join),
    st.lists(st.sampled_from(SPELLINGS), unique=True),
)
def test_agrees_with_the_definition_whether_spellings_overlap_or_not(text: str, spellings: list[str]) -> None:
    tokens = [SpecialToken(i, spelling) for i, spelling in enumerate(spellings)]
    assert SpecialSplitter(tokens).split([text]) == by_turns(text, tokens)


def test_runs_of_characters_are_found_in_one_pass() -> None:
    runs = [
        SpecialToken(i, char * n) for i, (char, n) in enumerate((c, n) for c in "\n \t" for n in range(1, 8))
    ]
    splitter = SpecialSplitter([*runs, SpecialToken(90, "<h1>"), SpecialToken(91, "</h1>")])
    assert splitter._pattern is not None
    text = "a" + "\n" * 17 + "  b <h1>" + " " * 8 + "\t\n"
    assert splitter.split([text]) == by_turns(text, splitter._tokens)


def test_ids_among_the_pieces_stay() -> None:
    splitter = SpecialSplitter([SpecialToken(1, "<x>")])
    assert splitter.split([7, "a<x>", "", 8, "<x>b"]) == [7, "a", 1, 8, 1, "b"]


@pytest.mark.parametrize("overlapping", [False, True])
def test_white_space_that_belongs_to_a_token_goes_with_it(overlapping: bool) -> None:
    tokens = [SpecialToken(1, "<x>", lstrip=True), SpecialToken(2, "<y>", rstrip=True)]
    tokens += [SpecialToken(3, "><")] if overlapping else []
    splitter = SpecialSplitter(tokens)
    assert splitter.split(["a \n<x> b <y>\t c \u00a0<x>"]) == ["a", 1, " b ", 2, "c \u00a0", 1]
