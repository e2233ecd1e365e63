"""Finding special tokens in text as llama.cpp does: each in turn over all that is left, the longest first.

Where no two spellings can overlap, which is nearly always, one pass of a regular expression gives the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from duologue.dialogue.vocabulary import SpecialToken

_ASCII_SPACES = " \t\n\v\f\r"


class SpecialSplitter:
    """Splits text at the spellings of `tokens`."""

    def __init__(self, tokens: Iterable[SpecialToken]) -> None:
        # Of spellings of equal length (in bytes) the lower id goes first.
        self._tokens = sorted(tokens, key=lambda t: (-len(t.text.encode()), t.id))
        self._by_text = {t.text: t for t in self._tokens}
        self._pattern: re.Pattern[str] | None = None
        if self._tokens and not _can_overlap(self._by_text):
            self._pattern = re.compile(f"({'|'.join(re.escape(t.text) for t in self._tokens)})")

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


def _can_overlap(texts: Iterable[str]) -> bool:
    """Whether one spelling can begin inside another and go on beyond its end."""
    beginnings = {text[:end] for text in texts for end in range(1, len(text))}
    return any(text[start:] in beginnings for text in texts for start in range(1, len(text)))
