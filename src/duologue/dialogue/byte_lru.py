"""A least-recently-used cache bounded in bytes, safe to use from several threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 200  # of the dictionary, its key object and the value object, about


class ByteLru(Generic[K, V]):
    """Maps keys to values. What an entry costs in bytes is said when it is put in; the least recently used go
    once the budget is passed, and an entry that alone is larger than it is not kept."""

    def __init__(self, budget_bytes: int, dropped: Callable[[K], None] | None = None) -> None:
        """`dropped` is called, with the lock held, for each key that leaves for want of room or on request."""
        if budget_bytes < 0:
            raise ValueError(f"a budget of {budget_bytes} bytes is negative")
        self._budget_bytes = budget_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._dropped = dropped
        self.lock = threading.RLock()

    def get(self, key: K) -> V | None:
        """The value, which now is the last used, or None."""
        with self.lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, cost_bytes: int) -> bool:
        """Add or replace. False, with any older value gone, if the entry is larger than the whole budget."""
        with self.lock:
            old = self._entries.pop(key, None)
            self._bytes -= old[1] if old is not None else 0
            if cost_bytes > self._budget_bytes:
                if old is not None and self._dropped is not None:
                    self._dropped(key)
                return False
            self._entries[key] = value, cost_bytes
            self._bytes += cost_bytes
            while self._bytes > self._budget_bytes:
                oldest, (_, cost) = self._entries.popitem(last=False)
                self._bytes -= cost
                if self._dropped is not None:
                    self._dropped(oldest)
            return True

    def remove(self, key: K) -> None:
        """Drop an entry if it is there."""
        with self.lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._bytes -= entry[1]
                if self._dropped is not None:
                    self._dropped(key)

    @property
    def used_bytes(self) -> int:
        """What the entries cost together, at most the budget."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._entries)
