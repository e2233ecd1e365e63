"""Which pages of a dialogue stay when a turn is over and nothing is evicted: the rule of docs/cache.md as arithmetic.

The index keeps pages as it goes (kernels/csrc/cache/windows.cpp); here the same is said of a dialogue at rest, so that its memory
can be told without running it. `tests/engine/test_kv_accounting.py` holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.errors import InvalidRequestError

_FIRST_SPARSE_WINDOWS = 4
"""Sparse checkpoints stand at 4, 8, 16, ... windows from the start."""


@dataclass(frozen=True)
class DialogueShape:
    """A dialogue at rest, in positions whose KV was computed (a reply's last token was only sampled, so it is not among them).

    `message_tokens` from where the last user message begins to where the reply does, `reply_tokens` from there to the end.
    `closing_tokens`, part of the message, lie behind its text: the template's words before a reply. `persona_tokens`: what other
    dialogues have in common with it, 0 for none. The defaults are a message of 9,600 tokens in 180, under ChatML. In a
    dialogue too short for all of this the history, then the message, is empty.

    Raises InvalidRequestError naming the field out of range.
    """

    tokens: int
    message_tokens: int = 53
    reply_tokens: int = 53
    closing_tokens: int = 5
    persona_tokens: int = 0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise InvalidRequestError(f"a dialogue has at least 1 token, not {self.tokens}")
        for name in ("message_tokens", "reply_tokens", "closing_tokens", "persona_tokens"):
            if getattr(self, name) < 0:
                raise InvalidRequestError(f"{name} {getattr(self, name)} must not be negative")
        if self.closing_tokens > self.message_tokens:
            raise InvalidRequestError(
                f"closing_tokens {self.closing_tokens} are more than the message's {self.message_tokens}"
            )

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Ascending positions behind which a window is kept, sparse checkpoints apart: the persona's end, the last user message's
        begin and that of what closes it, the prompt's end, and the end."""
        prompt = self.tokens - self.reply_tokens
        places = {
            min(self.persona_tokens, self.tokens),
            prompt - self.message_tokens,
            prompt - self.closing_tokens,
            prompt,
            self.tokens,
        }
        return tuple(sorted(place for place in places if place > 0))

    def sparse_checkpoints(self, window_tokens: int) -> tuple[int, ...]:
        """Ascending positions of its sparse checkpoints."""
        places, place = [], _FIRST_SPARSE_WINDOWS * window_tokens
        while 0 < place <= self.tokens:
            places.append(place)
            place *= 2
        return tuple(places)


@dataclass(frozen=True)
class ResidentPages:
    """Pages of one dialogue at rest. `sparse_pages` are local ones that sparse checkpoints alone hold: the first to be evicted."""

    global_pages: int
    local_pages: int = 0
    sparse_pages: int = 0


def resident_pages(shape: DialogueShape, window_tokens: int, page_tokens: int) -> ResidentPages:
    """What the cache keeps of a dialogue for a model whose widest window is `window_tokens` (0: no layer has one)."""
    pages = -(-shape.tokens // page_tokens)
    if not window_tokens:
        return ResidentPages(pages)
    kept = _pages_behind(shape.boundaries, window_tokens, page_tokens)
    sparse = _pages_behind(shape.sparse_checkpoints(window_tokens), window_tokens, page_tokens)
    return ResidentPages(pages, len(kept), len(sparse - kept))


def _pages_behind(positions: tuple[int, ...], window_tokens: int, page_tokens: int) -> set[int]:
    """Pages that the windows behind these positions lie on, each once. A kept window has one position more than a query sees: the
    last token before it may have to be computed again for its logits."""
    return {
        page
        for position in positions
        for page in range(max(0, position - window_tokens) // page_tokens, -(-position // page_tokens))
    }
