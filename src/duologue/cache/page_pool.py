"""A fixed pool of KV pages with reference counts.

A page is PAGE_TOKENS positions of every KV-owning layer of one kind, under one id. Sequences may share pages; a page may be
written only while it has one reference. The pool is not thread-safe: the engine's thread owns it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.errors import CapacityError


class PagePool:
    """`page_count` pages of bookkeeping, over memory that the caller owns (or none: simulators need only the counts)."""

    def __init__(self, page_count: int) -> None:
        if page_count < 1:
            raise CapacityError("the KV budget holds no page; raise --kv-memory")
        self._references: npt.NDArray[np.int32] = np.zeros(page_count, dtype=np.int32)
        # A stack, lowest id on top at first: recently freed pages are warm and are taken first.
        self._free: list[int] = list(range(page_count - 1, -1, -1))

    @property
    def page_count(self) -> int:
        """All pages, free or not."""
        return len(self._references)

    @property
    def free_count(self) -> int:
        """Pages without a reference."""
        return len(self._free)

    def references(self, page: int) -> int:
        """How many holders the page has."""
        return int(self._references[page])

    def allocate(self) -> int:
        """Take a free page with one reference. Raises CapacityError when there is none."""
        if not self._free:
            raise CapacityError("no free KV page")
        page = self._free.pop()
        self._references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Add a holder to a page in use."""
        if self._references[page] < 1:
            raise ValueError(f"page {page} is free and cannot be shared")
        self._references[page] += 1

    def release(self, page: int) -> None:
        """Drop a holder; the last one frees the page."""
        if self._references[page] < 1:
            raise ValueError(f"page {page} was released more often than it was taken")
        self._references[page] -= 1
        if not self._references[page]:
            self._free.append(page)

    def check_integrity(self) -> None:
        """Raise AssertionError when counts and free list disagree."""
        free = np.asarray(self._free, dtype=np.int64)
        assert len(np.unique(free)) == len(free), "a page is free twice"
        assert not self._references[free].any(), "a free page has holders"
        assert len(free) + int((self._references > 0).sum()) == self.page_count, "a page is lost"
        assert int(self._references.min()) >= 0, "a page has a negative count"
