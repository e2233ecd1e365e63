"""The page pool never loses, doubles or frees a page in use."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duologue.cache.page_pool import PagePool
from duologue.errors import CapacityError


class PoolMachine(RuleBasedStateMachine):
    """Compares the pool with a plain dictionary of counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(7)
        self.model: dict[int, int] = {}

    @rule()
    def allocate(self) -> None:
        if len(self.model) == 7:
            with pytest.raises(CapacityError):
                self.pool.allocate()
            return
        page = self.pool.allocate()
        assert page not in self.model
        self.model[page] = 1

    @rule(page=st.integers(0, 6))
    def retain(self, page: int) -> None:
        if page in self.model:
            self.pool.retain(page)
            self.model[page] += 1
        else:
            with pytest.raises(ValueError, match="is free"):
                self.pool.retain(page)

    @rule(page=st.integers(0, 6))
    def release(self, page: int) -> None:
        if page not in self.model:
            with pytest.raises(ValueError, match="more often"):
                self.pool.release(page)
            return
        self.pool.release(page)
        self.model[page] -= 1
        if not self.model[page]:
            del self.model[page]

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert self.pool.free_count == 7 - len(self.model)
        for page, count in self.model.items():
            assert self.pool.references(page) == count


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_budget_without_a_page_is_refused() -> None:
    with pytest.raises(CapacityError, match="kv-memory"):
        PagePool(0)


def test_integrity_check_notices_a_lost_page() -> None:
    pool = PagePool(3)
    pool.allocate()
    pool._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        pool.check_integrity()
