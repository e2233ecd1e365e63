"""Holds an engine at a known point, and listens to it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from duologue import Engine, TokenEvent
from duologue.engine.chunk import Chunk

WAIT_S = 60.0


class Listener:
    """Collects the events of one request."""

    def __init__(self) -> None:
        self.events: list[TokenEvent] = []
        self.first = threading.Event()
        self._last = threading.Event()

    def __call__(self, event: TokenEvent) -> None:
        self.events.append(event)
        self.first.set()
        if event.finish_reason is not None:
            self._last.set()

    def last(self) -> TokenEvent:
        """Wait for the last event; nothing but it may say how the request ended."""
        assert self._last.wait(WAIT_S), "the request did not end"
        assert [event.finish_reason is not None for event in self.events].count(True) == 1
        assert self.events[-1].finish_reason is not None
        return self.events[-1]


class Gate:
    """Stops the engine's thread before each forward step until `let` allows some; `open` ends the control."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self._arrivals = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._open = False
        step = engine._runner.step

        def gated(chunks: Sequence[Chunk], **options: Any) -> Any:
            self._arrivals.release()
            if not self._open:
                assert self._permits.acquire(timeout=WAIT_S)
            return step(chunks, **options)

        patch.setattr(engine._runner, "step", gated)

    def wait(self) -> None:
        """Until the engine stands before a step."""
        assert self._arrivals.acquire(timeout=WAIT_S), "the engine did not step"

    def let(self, steps: int) -> None:
        """Compute so many steps and stand before the next. The engine must stand before one already."""
        for _ in range(steps):
            self._permits.release()
            self.wait()

    def open(self) -> None:
        self._open = True
        self._permits.release()


def script(engine: Engine, patch: pytest.MonkeyPatch, ids: Iterable[int]) -> None:
    """Let the model compute as ever, but choose these tokens instead of the sampled ones. For one request at a time."""
    step, tokens = engine._runner.step, iter(ids)

    def scripted(chunks: Sequence[Chunk], **options: Any) -> Any:
        sampled, logits = step(chunks, **options)
        row = 0
        for chunk in chunks:
            if chunk.samples:
                sampled[row] = next(tokens)
                for at, draft in enumerate(chunk.drafts, start=row):
                    if sampled[at] != draft:
                        break
                    sampled[at + 1] = next(tokens)
                row += 1 + len(chunk.drafts)
        return sampled, logits

    patch.setattr(engine._runner, "step", scripted)


def assert_nothing_is_held(engine: Engine) -> None:
    """Every request has ended and every page is free."""
    assert engine.drain(WAIT_S)
    engine.check_integrity()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.kv_pages_free == stats.kv_pages_total
