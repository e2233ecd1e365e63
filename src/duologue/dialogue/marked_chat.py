"""One dialogue, rendered so that the origin of every character stays known.

`pieces` is the prompt, cut at the control tokens that the template wrote (see `template` for why user text
cannot add any). It is the only text that is ever encoded. `spans` renders once more, with chosen messages
between two characters that occur nowhere else, only to learn where their content went: a span is reported
where the prompt holds, between the same surroundings, the content as it is or without white space at its ends.
So whatever a template does to a bracketed message, the prompt itself does not change by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duologue.dialogue.marking import Marker, Spellings, strings_in, unused_character
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import TemplateError


@dataclass(frozen=True)
class ContentSpan:
    """Where the content of `messages[message]` stands in a text piece of the prompt: `[start, end)` in
    characters. The template may have trimmed `lead` characters of the content before and some after."""

    message: int
    piece: int
    start: int
    end: int
    lead: int


class MarkedChat:
    """The messages, marked, and what a template makes of them.

    `plain` are the messages as the template gets them; `pieces` the prompt: ids of control tokens and, between
    them, non-empty text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        render: Callable[[Any, Any], str],
        plain: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        foreign: Sequence[str] = (),
    ) -> None:
        """`render(messages, tools)` is the template, whose other text is `foreign`. Raises what it raises."""
        self.plain = plain
        self._tokenizer = tokenizer
        self._render = render
        texts = list(strings_in([plain, tools]))
        self._mark, self._open, self._close = _unused_characters([*foreign, *texts])
        marker = _QuickMarker(tokenizer.control_spellings, self._mark)
        self._messages, self._tools = marker.light_messages(plain), marker.light_all(tools)
        self._marked = self._split(self._messages)
        if any(map(marker.needs_dense, texts)):
            light, light_tools = self._messages, self._tools
            self._messages, self._tools = marker.dense_all(plain), marker.dense_all(tools)
            dense = self._split(self._messages)
            if _controls(dense) == _controls(self._marked):
                self._messages, self._tools = light, light_tools
            else:
                self._marked = dense
        self.pieces: list[int | str] = [self._unmarked(p) if isinstance(p, str) else p for p in self._marked]

    def spans(self, messages: Collection[int]) -> dict[int, list[ContentSpan]]:
        """Spans of the contents of these messages by piece, in order. Messages whose content the template
        changes or leaves out, and empty ones, are missing; of one that it repeats, the first place counts."""
        bracketed = [dict(m) for m in self._messages]
        cores: dict[str, list[int]] = {}
        for i in sorted(messages):
            core = self._messages[i]["content"].strip()
            if core:
                bracketed[i]["content"] = f"{self._open}{core}{self._close}"
                cores.setdefault(core, []).append(i)
        try:
            pieces = self._split(bracketed) if cores else []
        except TemplateError:
            return {}
        if _controls(pieces) != _controls(self._marked) or len(pieces) != len(self._marked):
            return {}
        found: dict[int, list[ContentSpan]] = {}
        for number, (piece, marked) in enumerate(zip(pieces, self._marked, strict=True)):
            if isinstance(piece, str) and isinstance(marked, str) and self._open in piece:
                found[number] = self._aligned(number, piece, marked, cores)
        return found

    def _aligned(
        self, number: int, bracketed: str, marked: str, cores: Mapping[str, list[int]]
    ) -> list[ContentSpan]:
        """The spans in one piece, none if what surrounds the brackets is not in the piece too."""
        parts = re.split(f"([{self._open}{self._close}])", bracketed)
        # text, open, core, close, text, open, core, close, text
        if len(parts) % 4 != 1 or any(
            (parts[i], parts[i + 2]) != (self._open, self._close) for i in range(1, len(parts), 4)
        ):
            return []
        if not marked.startswith(parts[0]):
            return []
        spans: list[ContentSpan] = []
        at, offset = len(parts[0]), len(self._unmarked(parts[0]))
        for i in range(2, len(parts), 4):
            core, after = parts[i], parts[i + 2]
            if not cores.get(core):
                return []
            message = cores[core][0]
            content = self._messages[message]["content"]
            # Longest first. What follows decides; at the end of the piece it has to reach the end.
            for variant in dict.fromkeys((content, content.rstrip(), content.lstrip(), core)):
                text = variant + after
                ends = i + 3 == len(parts)
                if marked[at:] == text if ends else marked.startswith(text, at):
                    break
            else:
                return spans
            end = offset + len(self._unmarked(variant))
            lead = 0 if content.startswith(variant) else len(content) - len(content.lstrip())
            spans.append(ContentSpan(message, number, offset, end, lead))
            cores[core].pop(0)
            at += len(text)
            offset = end + len(self._unmarked(after))
        return spans

    def _split(self, messages: Any) -> list[int | str]:
        return self._tokenizer.split_control(self._render(messages, self._tools))

    def _unmarked(self, text: str) -> str:
        return text.replace(self._mark, "")


class _QuickMarker:
    """`Marker`, with a test before it that spares most text the look at each of its characters."""

    def __init__(self, spellings: Spellings, mark: str) -> None:
        self._marker = Marker(spellings, mark)
        self._spellings = spellings
        self.needs_dense = self._marker.needs_dense

    def light_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self._spellings.within("role") or self._spellings.within("content"):
            marked: list[dict[str, Any]] = self.light_all(messages)
            return marked
        # Of nearly all messages only the content is free text: roles are checked and stay as they are.
        return [
            {"role": message["role"], "content": self._light(message["content"])}
            if len(message) == 2
            else self.light_all(message)
            for message in messages
        ]

    def light_all(self, value: Any) -> Any:
        return self._marker.apply(self._light, value)

    def dense_all(self, value: Any) -> Any:
        return self._marker.apply(self._marker.dense, value)

    def _light(self, text: str) -> str:
        # A short text may be the inside of a spelling; a longer one needs an edge of one.
        if len(text.strip()) >= self._spellings.longest and not self.needs_dense(text):
            return text
        return self._marker.light(text)


def _unused_characters(texts: Iterable[str]) -> tuple[str, str, str]:
    """Three characters that occur in none of the texts."""
    joined = "".join(text for text in texts if not text.isascii())  # what is looked for is not ASCII
    first, second, third = "\ufdd0", "\ufdd1", "\ufdd2"
    if first in joined or second in joined or third in joined:
        first = unused_character([joined])
        second = unused_character([joined, first])
        third = unused_character([joined, first, second])
    return first, second, third


def _controls(pieces: Iterable[int | str]) -> list[int]:
    return [piece for piece in pieces if isinstance(piece, int)]
