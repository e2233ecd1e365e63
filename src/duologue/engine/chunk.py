"""What one step computes of one request."""

from __future__ import annotations

from dataclasses import dataclass

from duologue.engine.request import Request


@dataclass(frozen=True)
class Chunk:
    """Tokens [computed, computed + count) of one request in the next step; `samples` when the last of them is its newest.

    `drafts`, of a request that decodes, are computed behind it: the step samples after the newest token and after each of them.
    """

    request: Request
    count: int
    samples: bool
    drafts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Tokens that the step computes of it."""
        return self.count + len(self.drafts)
