"""Drafts from what plain decoding said, spoiled at random: every length of accepted draft occurs, whatever the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from duologue.cache.kv_cache import KvCache
from duologue.engine.chunk import Chunk
from duologue.engine.drafter import Ids
from duologue.engine.speculation import Speculation


class OracleSpeculation(Speculation):
    """`replies` holds the whole token sequences of plain decoding by request number. Costs do not matter to it."""

    def __init__(
        self,
        cache: KvCache,
        most_tokens: int,
        replies: Mapping[int, Sequence[int]],
        *,
        vocab: int,
        seed: int = 0,
        spoil: float = 0.5,
    ) -> None:
        super().__init__(cache, most_tokens)
        self._replies = replies
        self._vocab = vocab
        self._rng = np.random.default_rng(seed)
        self._spoil = spoil

    def choose(self, chunks: Sequence[Chunk], streams: Sequence[object], rows: int) -> list[Ids]:
        drafts = []
        for stream in streams:
            at, most = stream.at, stream.most  # type: ignore[attr-defined]
            request = chunks[at].request
            known = self._replies[request.number][request.total_tokens :]
            draft = np.array(known[: int(self._rng.integers(0, most + 1))], dtype=np.int32)
            if len(draft) and self._rng.random() < self._spoil:
                wrong = int(self._rng.integers(len(draft)))
                draft[wrong] = (draft[wrong] + 1 + self._rng.integers(self._vocab - 1)) % self._vocab
            drafts.append(draft)
        return drafts

    def learn(self, chunk: Chunk, accepted: int) -> None:
        """It knows."""
