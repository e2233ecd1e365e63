"""The inter-turn cache as the engine uses it: which KV is stored, and which sequences run on it.

A thin, typed layer over the native `PrefixCache` (docs/cache.md), which knows pages as numbers. Copies of partly matched
pages are handed to `copy_page`; simulators pass none.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.cache.geometry import KvGeometry
from duologue.cache.scope import CacheScope
from duologue.kernels import _native

Ids = npt.NDArray[np.int32]
CopyPage = Callable[[int, int, int], None]
GLOBAL, LOCAL = 0, 1
_FORGET_PAGES = 4096
"""Pages that are forgotten at once: a few milliseconds, in which the engine's thread may have to wait."""


@dataclass(frozen=True)
class CacheLookup:
    """How far a prompt is stored.

    `matched_tokens` can be used; `stored_tokens` is the longest stored common prefix, longer where windows of local KV are
    gone. `diverges`: a stored branch goes on differently there. `evicted`: what follows was stored once.
    """

    matched_tokens: int
    stored_tokens: int
    diverges: bool
    evicted: bool


@dataclass(frozen=True)
class ForgetResult:
    """What was removed."""

    pages: int
    tokens: int


@dataclass(frozen=True)
class CacheStats:
    """Counts by kind of page are (global, local)."""

    total_pages: tuple[int, int]
    free_pages: tuple[int, int]
    stored_pages: tuple[int, int]
    evictable_pages: tuple[int, int]
    evicted_pages: tuple[int, int]
    checkpoints: int
    stored_tokens: int
    roots: int
    sequences: int
    index_bytes: int


class CachedSequence:
    """The pages of one running sequence. The engine's thread alone uses it."""

    def __init__(self, cache: KvCache, opened: _native.CacheOpened, scope: CacheScope) -> None:
        self._cache = cache
        self._number = opened.sequence
        self._retention_s = scope.retention_s
        self._tenant = scope.tenant.encode("utf-8", "surrogatepass")
        self.copies: Sequence[tuple[int, int, int]] = opened.copies
        self.cached_tokens = int(opened.cached_tokens)
        self.lookup = _lookup(opened.lookup)

    @property
    def page_count(self) -> int:
        """Pages that it stands on, its own included."""
        return self._cache.native.page_count(self._number)

    def copy_table(self, kind: int, out: Ids) -> None:
        """Page ids by position / page_tokens, as many as `out` has room for."""
        self._cache.native.copy_table(self._number, kind, out)

    def reserve(self, tokens: int) -> bool:
        """Take pages for that many positions, evicting what is used least; False when there are not enough."""
        return self._cache.native.reserve(self._number, tokens)

    def commit(self, tokens: Ids, computed: int, *, seal: bool) -> None:
        """`tokens[:computed]` have their KV in the pages: full ones become available to others; with `seal` the last one too."""
        self._cache.native.commit(self._number, tokens, computed, seal, self._cache.now_s())

    def close(self, tokens: Ids, computed: int, *, keep: bool = True) -> bool:
        """End it. With `keep` all that it computed stays in the cache, without it only what others stored.

        False when it was forgotten while it ran: then nothing stays either way.
        """
        return self._cache.native.close(
            self._number, tokens, computed, keep, self._retention_s, self._cache.now_s(), self._tenant
        )


class KvCache:
    """`space` tells apart whose KV is compatible: weights, layer spec, layout. Lookups and forgetting are safe from any thread."""

    def __init__(
        self,
        geometry: KvGeometry,
        *,
        space: bytes = b"",
        copy_page: CopyPage | None = None,
        clock: Callable[[], float] = time.monotonic,
        hash_bits: int = 61,
    ) -> None:
        self.geometry = geometry
        self.now_s = clock
        self._space = space
        self._copy_page = copy_page
        self.native = _native.PrefixCache(
            page_tokens=geometry.page_tokens,
            global_pages=geometry.global_pages,
            local_pages=geometry.local_pages,
            window_tokens=geometry.window_tokens,
            hash_bits=hash_bits,
        )

    def open(
        self,
        tokens: Ids,
        scope: CacheScope,
        *,
        turns: Sequence[int] = (),
        shared: Sequence[int] = (),
        keep: bool = True,
    ) -> CachedSequence:
        """Start a sequence on the longest stored prefix; at least the last token is left to compute.

        `turns` and `shared` are positions behind which a hybrid model's windows are worth keeping: those of this turn, and
        those that other dialogues have in common. Without `keep` nothing that it computes can be found by others. Copies are due
        before the first step (`copy_pages`).
        """
        opened = self.native.open(
            self.space_of(scope.salt),
            self._owner(scope.tenant, scope.key),
            tokens,
            len(tokens) - 1,
            list(turns),
            list(shared),
            self.now_s(),
            keep,
        )
        return CachedSequence(self, opened, scope)

    def copy_pages(self, sequence: CachedSequence) -> None:
        """Do the copies that a sequence begins with."""
        if self._copy_page is not None:
            for kind, source, destination in sequence.copies:
                self._copy_page(kind, source, destination)
        sequence.copies = ()

    def lookup(self, tokens: Ids, salt: bytes) -> CacheLookup:
        """How far a prompt is stored. Changes nothing."""
        return _lookup(self.native.lookup(self.space_of(salt), tokens))

    def stored_branch(self, tokens: Ids, salt: bytes, limit: int) -> list[int]:
        """Up to `limit` tokens of the stored branch nearest to a prompt, from where they part."""
        return list(self.native.stored_branch(self.space_of(salt), tokens, limit))

    def forget(self, tenant: str, key: str) -> ForgetResult:
        """Remove what was stored under a key and nobody else reaches; what runs under it is out of reach at once."""
        return _in_slices(lambda: self.native.forget(self._owner(tenant, key), _FORGET_PAGES))

    def forget_salt(self, salt: bytes) -> ForgetResult:
        """Remove everything that was stored under a salt; it is out of reach at once."""
        space = self.space_of(salt)
        return _in_slices(lambda: self.native.forget_space(space, _FORGET_PAGES))

    def available(self, kind: int) -> int:
        """Pages that can be had: free ones, and those that eviction would give."""
        return self.native.available(kind)

    def stats(self) -> CacheStats:
        """Counters and gauges."""
        return CacheStats(**self.native.stats())

    def check_integrity(self) -> None:
        """Raise RuntimeError naming the first contradiction in the bookkeeping."""
        self.native.check_integrity()

    def space_of(self, salt: bytes) -> bytes:
        """The name of a salt's own tree."""
        return hashlib.blake2b(salt, key=hashlib.blake2b(self._space).digest(), digest_size=32).digest()

    @staticmethod
    def _owner(tenant: str, key: str | None) -> bytes:
        # Lengths keep ("a", "bc") and ("ab", "c") apart; a request without a key is not the same as one with an empty key.
        head = f"{len(tenant)}:{tenant}"
        return (head if key is None else f"{head}={key}").encode("utf-8", "surrogatepass")


def _in_slices(forget: Callable[[], tuple[int, int]]) -> ForgetResult:
    pages = tokens = 0
    while True:
        gone_pages, gone_tokens = forget()
        pages, tokens = pages + gone_pages, tokens + gone_tokens
        if gone_pages < _FORGET_PAGES:
            return ForgetResult(pages, tokens)


def _lookup(found: _native.CacheLookup) -> CacheLookup:
    return CacheLookup(found.matched_tokens, found.stored_tokens, found.diverges, found.evicted)
