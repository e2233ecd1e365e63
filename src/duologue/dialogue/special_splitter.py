"""Finding special tokens in text as llama.cpp does: each in turn over all that is left, the longest first.

Where overlaps cannot make a difference, which is nearly always, one pass of a regular expression gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property

from duologue.dialogue.trie_pattern import any_of
from duologue.dialogue.vocabulary import SpecialToken

_ASCII_SPACES = " \t\n\v\f\r"


class SpecialSplitter:
    """Splits text at the spellings of `tokens`."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        self._given = tuple(tokens)

    # What follows is made when it is first needed: for thousands of tokens it takes a while.

    @cached_property
    def _tokens(self) -> list[SpecialToken]:
        """In order: of spellings of equal length (in bytes) the lower id goes first."""
        return sorted(self._given, key=lambda t: (-len(t.text.encode()), t.id))

    @cached_property
    def _by_text(self) -> dict[str, SpecialToken]:
        return {t.text: t for t in self._tokens}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self._tokens or _need_turns(self._tokens):
            return None
        return re.compile(f"({any_of(self._by_text)})")

    def split(self, pieces: Iterable[int | str]) -> list[int | str]:
        """The pieces with every text among them cut into ids and the text between, none of it empty."""
        if self._pattern is None:
            return self._split_by_turns(pieces)
        result: list[int | str] = []
        for piece in pieces:
            if isinstance(piece, int):
                result.append(piece)
            else:
                first, *rest = self._pattern.split(piece)
                found = [
                    (self._by_text[text], after) for text, after in zip(rest[::2], rest[1::2], strict=True)
                ]
                result += _joined(first, found)
        return result

    def _split_by_turns(self, pieces: Iterable[int | str]) -> list[int | str]:
        pieces = [piece for piece in pieces if piece != ""]
        for token in self._tokens:
            cut: list[int | str] = []
            for piece in pieces:
                if isinstance(piece, int):
                    cut.append(piece)
                else:
                    first, *rest = piece.split(token.text)
                    cut += _joined(first, [(token, after) for after in rest])
            pieces = cut
        return pieces


def _joined(first: str, found: Sequence[tuple[SpecialToken, str]]) -> list[int | str]:
    """Text and tokens in order, without the white space that belongs to a token and without empty text."""
    parts: list[int | str] = [first]
    for token, after in found:
        before = parts[-1]
        if token.lstrip and isinstance(before, str):
            parts[-1] = before.rstrip(_ASCII_SPACES)
        parts += [token.id, after.lstrip(_ASCII_SPACES) if token.rstrip else after]
    return [part for part in parts if part != ""]


def _need_turns(ordered: Sequence[SpecialToken]) -> bool:
    """Whether one pass from left to right, which takes the longest token at each place, could give something else.

    It could if a token begins inside one that comes after it in the order, and no token that comes before it, nor itself,
    begins where the other does. (Runs of a character overlap and are harmless: where the longer of two begins inside the
    shorter, it begins at the shorter's place, too.) White space that belongs to a token can be a token of its own, found
    before or after.
    """
    texts = [token.text for token in ordered]
    strips = any(token.lstrip or token.rstrip for token in ordered)
    if strips and any(text != text.strip(_ASCII_SPACES) for text in texts):
        return True
    by_first: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        by_first.setdefault(text[0], []).append(place)
    for place, text in enumerate(texts):
        if not any(first in text[1:] for first in by_first):
            continue
        for start in range(1, len(text)):
            for other in by_first.get(text[start], ()):
                if other >= place:
                    break
                if not texts[other].startswith(text[start:]):
                    continue
                joined = text[:start] + texts[other]
                if strips or not any(joined.startswith(texts[c]) for c in by_first[text[0]] if c <= other):
                    return True
    return False
