"""Random schedules of requests against the prefix cache: whatever is read from a page must be the KV of that very prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from duologue.kernels import _native
from tests.cache.simulated import Running, SimulatedEngine

PAGE_TOKENS = 4
TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=30)
SPACES = st.sampled_from([b"", b"a", b"b"])
OWNERS = st.sampled_from([b"", b"x", b"y"])


class Schedules(RuleBasedStateMachine):
    """Opens, computes, closes and forgets in any order; histories grow from what was there before, as dialogues do."""

    running = Bundle("running")
    histories = Bundle("histories")

    @initialize(
        pages=st.integers(8, 40),
        window=st.sampled_from([0, 0, 3, 4, 6, 9]),
        local_pages=st.integers(8, 20),
        hash_bits=st.sampled_from([61, 61, 3]),
    )
    def start(self, pages: int, window: int, local_pages: int, hash_bits: int) -> None:
        cache = _native.PrefixCache(
            page_tokens=PAGE_TOKENS,
            global_pages=pages,
            local_pages=local_pages if window else 0,
            window_tokens=window,
            hash_bits=hash_bits,
        )
        self.engine = SimulatedEngine(cache, PAGE_TOKENS, window)
        self.live: list[Running] = []

    @rule(target=histories, tokens=TOKENS)
    def begin(self, tokens: list[int]) -> list[int]:
        return tokens

    @rule(target=histories, history=histories, tokens=TOKENS, cut=st.integers(0, 30))
    def branch(self, history: list[int], tokens: list[int], cut: int) -> list[int]:
        return (history[: len(history) - cut] if cut < len(history) else history) + tokens

    @rule(target=running, history=histories, space=SPACES, owner=OWNERS, data=st.data())
    def open(self, history: list[int], space: bytes, owner: bytes, data: st.DataObject) -> Running:
        positions = st.lists(st.integers(1, len(history)), max_size=2)
        turns, shared = data.draw(positions), data.draw(positions)
        request = self.engine.open(
            space,
            history,
            owner=owner,
            turns=tuple(turns),
            shared=tuple(shared),
            keep=data.draw(st.sampled_from([True, True, True, False])),
        )
        self.live.append(request)
        return request

    @rule(request=running, count=st.integers(1, 20))
    def compute(self, request: Running, count: int) -> None:
        if request.computed < len(request.tokens):
            self.engine.compute(request, count)

    @rule(request=running, reply=TOKENS)
    def decode(self, request: Running, reply: list[int]) -> None:
        if request.computed == len(request.tokens):
            request.tokens += reply
            self.engine.compute(request, len(reply))

    @rule(
        target=histories,
        request=consumes(running),
        keep=st.sampled_from([True, True, True, False]),
        retention_s=st.sampled_from([0.0, 0.0, 3.0, 20.0]),
    )
    def close(self, request: Running, keep: bool, retention_s: float) -> list[int]:
        self.engine.close(request, keep=keep, retention_s=retention_s)
        self.live.remove(request)
        return request.tokens

    @rule(owner=OWNERS, limit=st.sampled_from([1, 1000]))
    def forget(self, owner: bytes, limit: int) -> None:
        self.engine.cache.forget(owner, limit)

    @rule()
    def forget_everybody(self) -> None:
        """Then nothing can be matched, whatever still runs on it."""
        for owner in (b"", b"x", b"y"):
            self.engine.cache.forget(owner, 1000)
        for request in self.live:
            found = self.engine.cache.lookup(request.space, np.array(request.tokens, np.int32))
            assert (found.stored_tokens, found.evicted) == (0, False)

    @rule(space=SPACES, limit=st.sampled_from([1, 1000]))
    def forget_space(self, space: bytes, limit: int) -> None:
        self.engine.cache.forget_space(space, limit)
        assert self.engine.cache.lookup(space, np.zeros(9, np.int32)).stored_tokens == 0

    @invariant()
    def consistent(self) -> None:
        if hasattr(self, "engine"):
            self.engine.cache.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for request in self.live:
            self.engine.close(request)
        cache = self.engine.cache
        cache.check_integrity()
        stats = cache.stats()
        assert stats["sequences"] == 0
        # Nothing is locked any more, so everything could be had.
        assert cache.available(0) == stats["total_pages"][0]
        assert cache.available(1) == stats["total_pages"][1]


TestSchedules = pytest.mark.timeout(280)(Schedules.TestCase)
TestSchedules.settings = settings(
    max_examples=300, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
