"""One regular expression for many fixed texts, in time that does not grow with their number.

`a|b|c` tries one text after the other, and some vocabularies have thousands of special tokens. Here texts share their
beginnings, so that at each place of what is searched only a few characters are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

_MOST_NESTING = 100  # what `re` compiles without running out of Python's stack


def any_of(texts: Iterable[str]) -> str:
    """Source of an expression that matches the longest of the (non-empty) texts at a place. Has no capturing group."""
    ordered = sorted(set(texts))
    try:
        return _branches(ordered, 0, 0)
    except RecursionError:
        return f"(?:{'|'.join(re.escape(text) for text in sorted(ordered, key=len, reverse=True))})"


def _branches(texts: list[str], at: int, depth: int) -> str:
    """Matches what the texts, sorted and equal up to `at`, go on with there."""
    if depth > _MOST_NESTING:
        raise RecursionError
    ends = len(texts[0]) == at
    firsts: dict[
        str, str
    ] = {}  # by what comes after them, so that '<unused0>' to '<unused99>' take one branch
    for group in _by_character(texts[ends:], at):
        after = _after(group, at + 1, depth)
        firsts[after] = firsts.get(after, "") + group[0][at]
    sources = [f"{_one_of(characters)}{after}" for after, characters in firsts.items()]
    if not ends and len(sources) == 1:
        return sources[0]
    return f"(?:{'|'.join(sources)}){'?' if ends and sources else ''}"


def _by_character(texts: list[str], at: int) -> Iterator[list[str]]:
    return (list(group) for _, group in groupby(texts, key=lambda text: text[at]))


def _after(texts: list[str], at: int, depth: int) -> str:
    """As `_branches`, but for what all of them share first."""
    first, last = texts[0], texts[-1]
    end = at
    while end < len(first) and first[end] == last[end]:  # sorted: what first and last share, all share
        end += 1
    same = re.escape(first[at:end])
    return same if len(texts) == 1 else same + _branches(texts, end, depth + 1)


def _one_of(characters: str) -> str:
    return re.escape(characters) if len(characters) == 1 else f"[{re.escape(characters)}]"
