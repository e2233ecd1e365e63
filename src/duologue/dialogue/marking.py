"""Marks that tell text from messages apart from the template's own, so that it cannot spell a control token.

A mark is a character that occurs in neither. See `template` for how the two markings are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from duologue.dialogue.trie_pattern import any_of

# Code points that Unicode reserves for a program's inner use come first; real text has none of them.
_NONCHARACTERS = (*range(0xFDD0, 0xFDF0), 0xFFFE, 0xFFFF)


def unused_character(texts: Iterable[str]) -> str:
    """A character that occurs in none of the texts."""
    used = set().union(*texts)
    candidates = (chr(c) for c in (*_NONCHARACTERS, *range(0xF0000, 0x110000)))
    return next(c for c in candidates if c not in used)


def strings_in(value: Any) -> Iterator[str]:
    """Every string in nested mappings and lists, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item)


class Spellings:
    """The control tokens' spellings, of which there can be thousands, made ready to be looked for. Immutable."""

    def __init__(self, spellings: Iterable[str]) -> None:
        """Those of one character are left out: there is no place inside them for a mark."""
        self._all = sorted((s for s in spellings if len(s) > 1), key=len, reverse=True)
        self.longest = max(map(len, self._all), default=0)
        self.first = frozenset(s[0] for s in self._all)
        self.last = frozenset(s[-1] for s in self._all)
        self.edges = sorted(self.first | self.last)
        self._joined = "\n".join(self._all)

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        # Looks ahead, so that those that begin inside another are found, too.
        return re.compile(f"(?=({any_of(self._all)}))") if self._all else None

    def within(self, text: str) -> list[str]:
        """Spellings in the text, at each place the longest one; the longest first."""
        if self._pattern is None or not any(first in text for first in self.first):
            return []
        return sorted(set(self._pattern.findall(text)), key=len, reverse=True)

    def has_inside(self, text: str) -> bool:
        """Whether the text is a part of one of them."""
        return len(text) <= self.longest and text in self._joined and any(text in s for s in self._all)


class Marker:
    """Marks strings against forging any of `spellings` with the character `mark`."""

    def __init__(self, spellings: Spellings, mark: str) -> None:
        self._spellings = spellings
        self._mark = mark

    def light(self, text: str) -> str:
        """Marks inside every control token spelled in the text, and at an end that could complete one with
        what the template writes next to it. Nearly all text is returned as it is."""
        core = text.strip()
        if not core:
            return text
        spellings, marked = self._spellings, core
        while found := spellings.within(marked):
            for spelling in found:
                marked = marked.replace(spelling, spelling[0] + self._mark + spelling[1:])
        infix = len(core) < spellings.longest and spellings.has_inside(core)
        if infix or not spellings.last.isdisjoint(core[: spellings.longest]):
            marked = self._mark + marked
        if infix or not spellings.first.isdisjoint(core[-spellings.longest :]):
            marked += self._mark
        return marked if len(core) == len(text) else text.replace(core, marked, 1)

    def dense(self, text: str) -> str:
        """Marks around every character but the white space at the ends, which templates may strip."""
        core = text.strip()
        if not core:
            return text
        marked = self._mark + self._mark.join(core) + self._mark
        return marked if len(core) == len(text) else text.replace(core, marked, 1)

    def needs_dense(self, text: str) -> bool:
        """Whether a template that cuts or joins the text could make the first or last character of a control
        token from it."""
        return any(edge in text for edge in self._spellings.edges)

    def apply(self, way: Callable[[str], str], value: Any, key: str = "") -> Any:
        """`value` with every string in it marked, but for those that templates compare: roles and types."""
        if isinstance(value, str):
            return value if key in ("role", "type") and value.isidentifier() else way(value)
        if isinstance(value, Mapping):
            return {self._key(way, k): self.apply(way, v, k) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.apply(way, v) for v in value]
        return value

    def _key(self, way: Callable[[str], str], key: Any) -> Any:
        if isinstance(key, str) and (not key.isidentifier() or self._spellings.within(key)):
            return way(key)
        return key
