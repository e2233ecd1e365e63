"""One regular expression for many fixed texts, in time that does not grow with their number.

`a|b|c` tries one text after the other, and some vocabularies have thousands of special tokens. Here texts share their
beginnings, so that at each place of what is searched only a few characters are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
    groups: list[list[str]] = []
    for text in texts[ends:]:
        if groups and groups[-1][0][at] == text[at]:
            groups[-1].append(text)
        else:
            groups.append([text])
    sources = [_group(group, at, depth) for group in groups]
    if not ends and len(sources) == 1:
        return sources[0]
    return f"(?:{'|'.join(sources)}){'?' if ends and sources else ''}"


def _group(texts: list[str], at: int, depth: int) -> str:
    """As `_branches`, for texts that go on with the same character."""
    first, last = texts[0], texts[-1]
    end = at + 1
    while end < len(first) and first[end] == last[end]:  # sorted: what first and last share, all share
        end += 1
    same = re.escape(first[at:end])
    return same if len(texts) == 1 else same + _branches(texts, end, depth + 1)
