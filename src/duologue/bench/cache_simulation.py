"""Hit rates of the prefix index on a trace, beside the offline optimum and a plain least-recently-used tree.

The optimum is Belady's rule on pages: out goes the leaf whose next use lies furthest in the future. A page is never used before its
parent, so it costs the rule nothing that leaves go first. Hits are counted token by token.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from duologue.bench.cache_trace import Access, working_set_pages
from duologue.cache.geometry import KvGeometry
from duologue.cache.kv_cache import KvCache
from duologue.cache.scope import DEFAULT_SCOPE
from duologue.kernels import PAGE_TOKENS

_NEVER = 1 << 60


class SimulatedCache(Protocol):
    """What a trace is replayed on."""

    def access(self, request: Access) -> int:
        """Serve one request; returns how many tokens of its prompt were there."""
        ...


@dataclass(frozen=True)
class Hits:
    """Sums over a trace; `reusable_tokens` is what a cache without limit finds."""

    requests: int
    hit_requests: int
    prompt_tokens: int
    cached_tokens: int
    reusable_tokens: int

    @property
    def by_query(self) -> float:
        return self.hit_requests / self.requests

    @property
    def by_token(self) -> float:
        return self.cached_tokens / self.prompt_tokens

    @property
    def of_reusable(self) -> float:
        return self.cached_tokens / self.reusable_tokens if self.reusable_tokens else 1.0


def replay(trace: Sequence[Access], cache: SimulatedCache, reusable: Sequence[int]) -> Hits:
    """Runs a trace. `reusable` has what an unlimited cache finds for each request (`reusable_tokens`)."""
    cached = [cache.access(request) for request in trace]
    return Hits(
        requests=len(trace),
        hit_requests=sum(tokens > 0 for tokens in cached),
        prompt_tokens=sum(len(request.prompt) for request in trace),
        cached_tokens=sum(cached),
        reusable_tokens=sum(reusable),
    )


def reusable_tokens(trace: Sequence[Access], page_tokens: int = PAGE_TOKENS) -> list[int]:
    """Tokens of each prompt that an earlier request processed, found by a tree without limit."""
    tree = PageTree(_NEVER, page_tokens, Recency())
    return [tree.access(request) for request in trace]


class IndexCache:
    """The engine's own prefix index, with pages that hold no KV; driven as the scheduler drives it, one request at a time."""

    def __init__(self, pages: int) -> None:
        ticks = itertools.count()
        self._cache = KvCache(KvGeometry(PAGE_TOKENS, pages), clock=lambda: float(next(ticks)))

    def access(self, request: Access) -> int:
        tokens = np.concatenate([request.prompt, request.reply])
        sequence = self._cache.open(request.prompt, DEFAULT_SCOPE)
        if not sequence.reserve(len(tokens) - 1):
            raise ValueError(f"a request of {len(tokens)} tokens does not fit into the simulated budget")
        sequence.commit(tokens, len(request.prompt), seal=True)
        sequence.commit(tokens, len(tokens) - 1, seal=False)
        sequence.close(tokens, len(tokens) - 1)
        return sequence.cached_tokens


@dataclass(eq=False)
class _Node:
    """One page of the tree. `key` orders eviction: the smallest goes first."""

    parent: _Node | None
    tokens: bytes
    path: int  # the same content on the same path has the same number in every tree of one Belady run
    children: dict[bytes, _Node] = field(default_factory=dict)
    key: int = 0
    is_pinned: bool = False
    is_stored: bool = True


class Policy(Protocol):
    """Decides what goes first."""

    def key(self, path: int, now: int) -> int:
        """The rank of a page once request `now` has been served; the smallest is evicted first."""
        ...

    def used(self, now: int) -> Iterable[int]:
        """Pages whose rank changes with request `now`, also when the tree served it without them."""
        ...


class Recency:
    """Least recently used."""

    def key(self, path: int, now: int) -> int:
        return now

    def used(self, now: int) -> Iterable[int]:
        return ()


class Foresight:
    """Belady's rule. `reads` has, by request, the pages that it reads from a tree without limit."""

    def __init__(self, reads: Sequence[Sequence[int]]) -> None:
        self._reads = reads
        uses: dict[int, list[int]] = {}
        for request, paths in enumerate(reads):
            for path in paths:
                uses.setdefault(path, []).append(request)
        self._uses = {path: iter(requests) for path, requests in uses.items()}
        self._next: dict[int, int] = {}

    def key(self, path: int, now: int) -> int:
        following = self._next.get(path, -1)
        while following <= now:
            following = next(self._uses.get(path, iter(())), _NEVER)
        self._next[path] = following
        return -following

    def used(self, now: int) -> Iterable[int]:
        return self._reads[now]


class PageTree:
    """A tree of pages of `page_tokens` ids (the last of a path may be shorter) with leaves-first eviction, in plain Python."""

    def __init__(
        self,
        pages: int,
        page_tokens: int,
        policy: Policy,
        paths: dict[tuple[int, bytes], int] | None = None,
        on_read: Callable[[int, int], None] = lambda path, now: None,
    ) -> None:
        self._free = pages
        self._page_bytes = 4 * page_tokens
        self._policy = policy
        self._paths = {} if paths is None else paths
        self._on_read = on_read
        self._root = _Node(None, b"", -1, is_pinned=True)
        self._now = -1
        self._stored: dict[int, _Node] = {}
        self._order = itertools.count()
        self._leaves: list[tuple[int, int, _Node]] = []  # with entries that are out of date

    def access(self, request: Access) -> int:
        """As SimulatedCache. Raises ValueError for a request that does not fit."""
        self._now += 1
        prompt = request.prompt[
            :-1
        ].tobytes()  # the last token is computed in any case: its logits are needed
        chain, extension, common = self._match(prompt)
        for node in chain if extension is None else [*chain, extension]:
            self._on_read(node.path, self._now)
        for node in chain:
            node.is_pinned = True
        chain = self._store(chain, request.computed.tobytes())
        for node in chain:
            node.is_pinned = False
        for node in chain if extension is None or not extension.is_stored else [*chain, extension]:
            self._touch(node)
        for path in self._policy.used(self._now):
            if (other := self._stored.get(path)) is not None:
                self._touch(other)
        return common // 4

    def _match(self, data: bytes) -> tuple[list[_Node], _Node | None, int]:
        """Full pages, the child that goes on in common, and the bytes matched."""
        node, at = self._root, 0
        chain: list[_Node] = []
        while (child := node.children.get(data[at : at + self._page_bytes])) is not None:
            if len(child.tokens) < self._page_bytes:
                break
            node = child
            chain.append(node)
            at += self._page_bytes
        best: _Node | None = None
        most = 0
        for key, child in node.children.items():
            common = _common_bytes(key, data[at:])
            if common > most:
                best, most = child, common
        return chain, best, at + most

    def _store(self, chain: list[_Node], data: bytes) -> list[_Node]:
        """Adds the pages behind `chain`; returns the whole path, pinned."""
        path = list(chain)
        node: _Node = path[-1] if path else self._root
        for at in range(self._page_bytes * len(path), len(data), self._page_bytes):
            tokens = data[at : at + self._page_bytes]
            child: _Node | None = node.children.get(tokens)
            if child is None:
                self._make_room()
                number = self._paths.setdefault((node.path, tokens), len(self._paths))
                child = self._stored[number] = _Node(node, tokens, number)
                for other in [other for key, other in node.children.items() if tokens.startswith(key)]:
                    self._remove(other)  # a shorter page that this one continues says nothing more
                node.children[tokens] = child
            child.is_pinned = True
            path.append(child)
            node = child
        return path

    def _make_room(self) -> None:
        if self._free > 0:
            self._free -= 1
            return
        while self._leaves:
            key, _, node = heapq.heappop(self._leaves)
            if node.is_stored and not node.is_pinned and not node.children and node.key == key:
                self._remove(node)
                self._free -= 1
                return
        raise ValueError("a request does not fit into the simulated budget")

    def _remove(self, node: _Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        del self._stored[node.path]
        node.is_stored = False
        self._free += 1
        if parent is not self._root and not parent.children and not parent.is_pinned:
            self._push(parent)

    def _touch(self, node: _Node) -> None:
        node.key = self._policy.key(node.path, self._now)
        if not node.children:
            self._push(node)

    def _push(self, node: _Node) -> None:
        heapq.heappush(self._leaves, (node.key, next(self._order), node))


def _common_bytes(a: bytes, b: bytes) -> int:
    """Length of the common prefix, in whole tokens of 4 bytes."""
    count = min(len(a), len(b)) // 4
    differs = np.flatnonzero(np.frombuffer(a, np.int32, count) != np.frombuffer(b, np.int32, count))
    return 4 * int(differs[0] if len(differs) else count)


@dataclass(frozen=True)
class Overcommit:
    """One budget: `pages` for a working set of `factor` times as many."""

    factor: float
    pages: int
    index: Hits
    recency: Hits
    optimum: Hits


def fitting_factors(trace: Sequence[Access], factors: Sequence[float] = (1, 2, 4)) -> tuple[float, ...]:
    """Those of `factors` under which every request fits into the budget alone, as it must."""
    working_set = working_set_pages(trace, PAGE_TOKENS)
    longest = max((len(access.prompt) + len(access.reply) - 1 for access in trace), default=0)
    # One page more: a match within a page is copied before it is written on.
    needed = -(-longest // PAGE_TOKENS) + 1
    return tuple(factor for factor in factors if factor <= 1 or math.ceil(working_set / factor) >= needed)


def compare(trace: Sequence[Access], factors: Sequence[float] = (1, 2, 4)) -> list[Overcommit]:
    """Replays a trace with smaller and smaller budgets. Raises ValueError for one that is too small for a single request."""
    working_set = working_set_pages(trace, PAGE_TOKENS)
    paths: dict[tuple[int, bytes], int] = {}
    reads: list[list[int]] = [[] for _ in trace]
    unlimited = PageTree(_NEVER, PAGE_TOKENS, Recency(), paths, lambda path, now: reads[now].append(path))
    reusable = [unlimited.access(request) for request in trace]
    rows = []
    for factor in factors:
        pages = math.ceil(working_set / factor)
        caches: list[SimulatedCache] = [
            IndexCache(pages),
            PageTree(pages, PAGE_TOKENS, Recency()),
            PageTree(pages, PAGE_TOKENS, Foresight(reads), paths),
        ]
        index, recency, optimum = (replay(trace, cache, reusable) for cache in caches)
        rows.append(Overcommit(factor, pages, index, recency, optimum))
    return rows
