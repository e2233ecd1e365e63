"""Marks that tell text from messages apart from the template's own, so that it cannot spell a control token.

A mark is a character that occurs in neither. See `template` for how the two markings are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

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


class Marker:
    """Marks strings against forging any of `spellings` (of two characters and more) with the character
    `mark`."""

    def __init__(self, spellings: Iterable[str], mark: str) -> None:
        self._spellings = sorted(spellings, key=len, reverse=True)
        self._mark = mark
        self._longest = max(map(len, self._spellings), default=0)
        self._first = {s[0] for s in self._spellings}
        self._last = {s[-1] for s in self._spellings}

    def light(self, text: str) -> str:
        """Marks inside every control token spelled in the text, and at an end that could complete one with
        what the template writes next to it. Nearly all text is returned as it is."""
        core = text.strip()
        if not core:
            return text
        marked = core
        for spelling in () if self._first.isdisjoint(core) else self._spellings:
            while spelling in marked:
                marked = marked.replace(spelling, spelling[0] + self._mark + spelling[1:])
        infix = len(core) < self._longest and any(core in s for s in self._spellings)
        if infix or not self._last.isdisjoint(core[: self._longest]):
            marked = self._mark + marked
        if infix or not self._first.isdisjoint(core[-self._longest :]):
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
        return not (self._first | self._last).isdisjoint(text)

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
        if isinstance(key, str) and (not key.isidentifier() or any(s in key for s in self._spellings)):
            return way(key)
        return key
