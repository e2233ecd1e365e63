"""How long the prefix index takes to find a long prompt among very many stored pages, its hash included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.cache.geometry import KvGeometry
from duologue.cache.kv_cache import KvCache
from duologue.cache.scope import DEFAULT_SCOPE
from duologue.kernels import PAGE_TOKENS

_VOCAB = 49_152
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LookupReading:
    """Seconds of each lookup, and what the index took for what it stored."""

    pages: int
    dialogues: int
    prompt_tokens: int
    index_bytes: int
    seconds: tuple[float, ...]

    def percentile_us(self, percent: float) -> float:
        """Microseconds."""
        return float(np.percentile(self.seconds, percent)) * 1e6


def dialogue_ids(dialogues: int, pages: int, persona_pages: int, prompt_tokens: int) -> Iterator[Ids]:
    """Random dialogues that share a persona; together about `pages` pages, one in eight of exactly `prompt_tokens` tokens."""
    rng = np.random.default_rng(0)
    persona = rng.integers(0, _VOCAB, persona_pages * PAGE_TOKENS)
    long_pages = prompt_tokens // PAGE_TOKENS - persona_pages
    own_pages = max(1, (pages - persona_pages) // dialogues)
    # The long ones take more than their share; the others make up for it.
    others = max(1, (8 * own_pages - long_pages) // 7)
    for i in range(dialogues):
        own = long_pages if i % 8 == 0 else others
        yield np.concatenate([persona, rng.integers(0, _VOCAB, own * PAGE_TOKENS)]).astype(np.int32)


def measure_lookup(
    pages: int = 1_000_000,
    dialogues: int = 10_000,
    prompt_tokens: int = 8_000,
    lookups: int = 5_000,
    on_progress: Callable[[str], None] = lambda text: None,
) -> LookupReading:
    """Fills an index with `dialogues` children of one persona and looks the long ones up, in random order."""
    if dialogues >= pages:
        raise ValueError(
            f"{pages} pages are too few for {dialogues} dialogues, each of which has some of its own"
        )
    on_progress(f"storing {pages:,} pages")
    cache = KvCache(KvGeometry(PAGE_TOKENS, pages))
    probes: list[Ids] = []
    for number, ids in enumerate(dialogue_ids(dialogues, pages, 5, prompt_tokens)):
        sequence = cache.open(ids, DEFAULT_SCOPE)
        if not sequence.reserve(len(ids)):
            raise ValueError(f"{pages} pages do not hold a dialogue of {len(ids)} tokens")
        sequence.commit(ids, len(ids), seal=True)
        sequence.close(ids, len(ids))
        if number % 8 == 0:
            probes.append(ids)
    stats = cache.stats()
    on_progress("looking up")
    seconds = []
    for index in np.random.default_rng(1).integers(0, len(probes), lookups):
        probe = probes[index]
        started = time.perf_counter()
        found = cache.lookup(probe, b"")
        seconds.append(time.perf_counter() - started)
        if found.matched_tokens not in (len(probe), 5 * PAGE_TOKENS):  # whole, or evicted by later ones
            raise ValueError(
                f"{pages} pages are too few for {dialogues} dialogues: "
                f"only {found.matched_tokens} of {len(probe)} tokens were found"
            )
    return LookupReading(stats.stored_pages[0], dialogues, prompt_tokens, stats.index_bytes, tuple(seconds))
