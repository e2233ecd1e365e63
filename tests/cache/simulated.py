"""Runs a PrefixCache as the engine does, with a KV that says what it is the KV of."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from duologue.kernels import _native

GLOBAL, LOCAL = 0, 1


@dataclass
class Running:
    """A sequence between open and close."""

    number: int
    space: bytes
    tokens: list[int]
    computed: int
    prompt_tokens: int
    sealed: bool = False


@dataclass
class SimulatedEngine:
    """KV of a position is the whole prefix that ends there and its namespace, so any mix-up is seen when it is read."""

    cache: _native.PrefixCache
    page_tokens: int
    window_tokens: int = 0
    kv: dict[tuple[int, int, int], tuple[bytes, tuple[int, ...]]] = field(default_factory=dict)
    now_s: float = 0.0

    def open(
        self,
        space: bytes,
        tokens: list[int],
        *,
        owner: bytes = b"",
        turns: tuple[int, ...] = (),
        shared: tuple[int, ...] = (),
        keep: bool = True,
    ) -> Running:
        self.now_s += 1
        ids = np.array(tokens, dtype=np.int32)
        opened = self.cache.open(
            space, owner, ids, len(tokens) - 1, list(turns), list(shared), self.now_s, keep
        )
        for kind, source, destination in opened.copies:
            for offset in range(self.page_tokens):
                if (kind, source, offset) in self.kv:
                    self.kv[kind, destination, offset] = self.kv[kind, source, offset]
                else:
                    self.kv.pop((kind, destination, offset), None)
        assert opened.cached_tokens < len(tokens)
        running = Running(opened.sequence, space, list(tokens), opened.cached_tokens, len(tokens))
        self.read(running)
        return running

    def table(self, running: Running, kind: int) -> npt.NDArray[np.int32]:
        table = np.full(self.cache.page_count(running.number), -7, dtype=np.int32)
        self.cache.copy_table(running.number, kind, table)
        return table

    def compute(self, running: Running, count: int) -> bool:
        """Computes up to `count` tokens; False when there are no pages."""
        end = min(running.computed + count, len(running.tokens))
        if not self.cache.reserve(running.number, end):
            return False
        self.now_s += 1
        kinds = (GLOBAL, LOCAL) if self.window_tokens else (GLOBAL,)
        tables = {kind: self.table(running, kind) for kind in kinds}
        for position in range(running.computed, end):
            # What attention would read: everything before, in the window only for local layers.
            running.computed = position
            self.read(running, tables)
            for kind in kinds:
                page = int(tables[kind][position // self.page_tokens])
                assert page >= 0
                self.kv[kind, page, position % self.page_tokens] = (
                    running.space,
                    tuple(running.tokens[: position + 1]),
                )
        running.computed = end
        seal = not running.sealed and end >= running.prompt_tokens
        running.sealed |= seal
        self.cache.commit(running.number, self.ids(running), end, seal, self.now_s)
        return True

    def read(self, running: Running, tables: dict[int, npt.NDArray[np.int32]] | None = None) -> None:
        """Asserts that the KV which the next token attends to is that of its own prefix."""
        end = running.computed
        for kind in (GLOBAL, LOCAL) if self.window_tokens else (GLOBAL,):
            table = tables[kind] if tables else self.table(running, kind)
            begin = max(0, end - self.window_tokens + 1) if kind == LOCAL else 0
            for position in range(begin, end):
                page = int(table[position // self.page_tokens])
                found = self.kv.get((kind, page, position % self.page_tokens))
                assert found == (running.space, tuple(running.tokens[: position + 1])), (
                    kind,
                    position,
                    page,
                    found,
                )

    def close(
        self, running: Running, *, keep: bool = True, retention_s: float = 0.0, tenant: bytes = b""
    ) -> bool:
        self.now_s += 1
        ids = self.ids(running)
        return self.cache.close(running.number, ids, running.computed, keep, retention_s, self.now_s, tenant)

    @staticmethod
    def ids(running: Running) -> npt.NDArray[np.int32]:
        return np.array(running.tokens, dtype=np.int32)

    def run(self, space: bytes, tokens: list[int], reply: list[int] | None = None, **options: object) -> int:
        """A whole request; returns how many tokens were cached."""
        running = self.open(space, tokens, **options)  # type: ignore[arg-type]
        cached = running.computed
        running.tokens += reply or []
        while running.computed < len(running.tokens):
            assert self.compute(running, 16)
        self.close(running)
        return cached
