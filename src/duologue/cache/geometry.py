"""How a byte budget for KV is cut into pages."""

from __future__ import annotations

from dataclasses import dataclass

from duologue.errors import CapacityError

# What the local share is sized for: dialogues of this many windows, each with the windows of its last turn. Sparse checkpoints
# take what is left over and are the first to go. A longer dialogue has more global pages for the same windows and then runs out
# of them first.
_DIALOGUE_WINDOWS = 8


@dataclass(frozen=True)
class KvGeometry:
    """Pages of both kinds; a model without window layers has no local ones. Raises CapacityError for a pool without a page."""

    page_tokens: int
    global_pages: int
    global_page_bytes: int = 0
    local_pages: int = 0
    local_page_bytes: int = 0
    window_tokens: int = 0

    def __post_init__(self) -> None:
        if self.global_pages < 1 or (self.window_tokens > 0) != (self.local_pages > 0):
            raise CapacityError("the KV budget holds no page; raise --kv-memory")

    @property
    def total_bytes(self) -> int:
        """Memory of all pages."""
        return self.global_pages * self.global_page_bytes + self.local_pages * self.local_page_bytes

    def pages_for(self, tokens: int) -> int:
        """Pages that hold so many positions."""
        return -(-tokens // self.page_tokens)

    def local_pages_for(self, tokens: int, step_tokens: int) -> int:
        """Most local pages that a running sequence of so many positions holds, computing `step_tokens` at once."""
        if not self.window_tokens:
            return 0
        return min(self.pages_for(tokens), _window_pages(self.window_tokens + step_tokens, self.page_tokens))

    @classmethod
    def for_budget(
        cls,
        budget_bytes: int,
        *,
        page_tokens: int,
        global_page_bytes: int,
        local_page_bytes: int,
        window_tokens: int,
        step_tokens: int,
    ) -> KvGeometry:
        """Pages for a budget. Raises CapacityError naming what one page, or one window, takes when the budget has no room for it.

        With window layers the budget is shared so that dialogues of `_DIALOGUE_WINDOWS` windows run out of both kinds together.
        """
        if not window_tokens:
            pages = budget_bytes // global_page_bytes
            if pages < 1:
                raise CapacityError(
                    f"the KV budget of {budget_bytes} bytes holds no page of {global_page_bytes} bytes; raise --kv-memory"
                )
            return cls(page_tokens, pages, global_page_bytes)
        window_pages = -(-window_tokens // page_tokens)
        dialogue_global = _DIALOGUE_WINDOWS * window_pages
        dialogue_local = window_pages + 3
        dialogue_bytes = dialogue_global * global_page_bytes + dialogue_local * local_page_bytes
        least_local = _window_pages(window_tokens + step_tokens, page_tokens)
        local_pages = max(least_local, budget_bytes * dialogue_local // dialogue_bytes)
        left_bytes = budget_bytes - local_pages * local_page_bytes
        # A model of window layers only has global pages that are numbers without KV.
        global_pages = left_bytes // global_page_bytes if global_page_bytes else 8 * local_pages
        if left_bytes < 0 or global_pages < 1:
            raise CapacityError(
                f"the KV budget of {budget_bytes} bytes has no room for {least_local} pages of {local_page_bytes} bytes, a window, "
                f"and a page of {global_page_bytes} bytes; raise --kv-memory"
            )
        return cls(page_tokens, global_pages, global_page_bytes, local_pages, local_page_bytes, window_tokens)


def _window_pages(tokens: int, page_tokens: int) -> int:
    """Most pages that so many positions in a row lie on while they move: one more at an end, and one that is kept longer."""
    return -(-tokens // page_tokens) + 2
