"""Cache-aware truncation: what is cut from a dialogue that has become too long, so that the cut stays still.

A prompt whose beginning moves with every turn shares nothing with the one before it. So the number of tokens
to remove is rounded up to a multiple of a large step: whole turns go, oldest first, until that many are gone,
and then the same turns stay away until the dialogue has grown by another step. The cut is a function of the
full message list and of nothing else, so it needs no memory, and any server makes the same one.

Tokens are counted in the canonical ids of the text. What is really encoded can be longer where replies are
spliced in; the room that is reserved for the next reply absorbs that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from duologue.errors import InvalidRequestError

TruncationMode: TypeAlias = Literal["auto", "disabled"]
PINNED_ROLES = frozenset(("system", "developer"))


@dataclass(frozen=True)
class Truncation:
    """How much fits, and by how much more to cut. `limit_tokens` is the whole context; of it `reserve_tokens`
    are kept free for the reply.

    Raises `InvalidRequestError` for sizes that leave nothing to work with.
    """

    limit_tokens: int
    step_tokens: int
    reserve_tokens: int

    def __post_init__(self) -> None:
        if not 0 < self.reserve_tokens < self.limit_tokens:
            raise InvalidRequestError(
                f"a reserve of {self.reserve_tokens} tokens must be above 0 and below the context of "
                f"{self.limit_tokens}",
                param="truncation",
                code="invalid_value",
            )
        if not 0 < self.step_tokens <= self.budget_tokens:
            raise InvalidRequestError(
                f"a truncation step of {self.step_tokens} tokens must be above 0 and at most the "
                f"{self.budget_tokens} that context and reserve leave for the prompt",
                param="truncation",
                code="invalid_value",
            )

    @property
    def budget_tokens(self) -> int:
        """What a prompt may have, in canonical tokens."""
        return self.limit_tokens - self.reserve_tokens

    @classmethod
    def of_context(cls, limit_tokens: int) -> Truncation:
        """A quarter of the context reserved, but at most 1,024 tokens, and steps of half of it."""
        reserve = max(1, min(limit_tokens // 4, 1_024))
        return cls(limit_tokens, max(1, min(limit_tokens // 2, limit_tokens - reserve)), reserve)


@dataclass(frozen=True)
class Cut:
    """Messages `[first, last)` of the list go; `kept_tokens` remain, `removed_tokens` do not."""

    first: int
    last: int
    kept_tokens: int
    removed_tokens: int

    def kept(self, count: int) -> list[int]:
        """Places, of `count` messages, of those that stay."""
        return [*range(self.first), *range(self.last, count)]


def truncation_mode(value: object) -> TruncationMode:
    """The request's `truncation`, as in OpenAI's Responses API; absent is `disabled`."""
    if value is None:
        return "disabled"
    if value not in ("auto", "disabled"):
        raise InvalidRequestError(
            f"truncation is {value!r}; it must be 'auto' or 'disabled'",
            param="truncation",
            code="invalid_value",
        )
    return value


def find_cut(
    truncation: Truncation,
    roles: Sequence[str],
    tokens: Sequence[int],
    fixed_tokens: int = 0,
    *,
    pinned: int | None = None,
    extra_steps: int = 0,
) -> Cut:
    """What goes of messages with these roles and numbers of tokens, `fixed_tokens` around them.

    A turn is a user message and what follows it up to the next; messages before the first user message are one,
    too. The `pinned` first messages stay (by default the leading system and developer messages), and so does
    the last turn. `extra_steps` more steps are cut, for a caller that finds the result still too long.

    Raises `InvalidRequestError` with code `context_length_exceeded` if what has to stay does not fit.
    """
    if pinned is None:
        pinned = next((i for i, role in enumerate(roles) if role not in PINNED_ROLES), len(roles))
    total = fixed_tokens + sum(tokens)
    excess = max(total - truncation.budget_tokens, 0)
    target = (-(-excess // truncation.step_tokens) + extra_steps) * truncation.step_tokens
    starts = [i for i, role in enumerate(roles) if i > pinned and role == "user"]
    last, removed = pinned, 0
    for start in starts:
        if removed >= target:
            break
        removed += sum(tokens[last:start])
        last = start
    if total - removed > truncation.budget_tokens or (extra_steps and removed < target):
        raise InvalidRequestError(
            f"the last turn and the system messages have {total - removed} tokens, but a context of "
            f"{truncation.limit_tokens} tokens with {truncation.reserve_tokens} reserved for the reply holds "
            f"{truncation.budget_tokens}; shorten the last message",
            param="messages",
            code="context_length_exceeded",
        )
    return Cut(pinned, last, total - removed, removed)
