"""Guesses how one request's reply goes on: as it did the last time that its latest tokens stood in the prompt or the reply."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from duologue.engine.sampling_params import SamplingParams
from duologue.kernels.suffix_match import longest_suffix_match

Ids = npt.NDArray[np.int32]
_LONGEST_MATCH = 16
# Further back than so many tokens nothing is looked for: a bound on the search's time, a few tens of microseconds.
_SEARCHED_TOKENS = 1 << 16
# How often the next token was the one that followed the latest earlier copy of the last 2, 3, ... 10 tokens, over requests of all
# kinds (docs/speculation.md). A request of its own kind moves all of them together, by an addend to their log-odds.
_ACCEPTANCE = (0.25, 0.35, 0.5, 0.55, 0.65, 0.7, 0.72, 0.75, 0.8)
_LOG_ODDS = tuple(math.log(chance / (1 - chance)) for chance in _ACCEPTANCE)
_LEARNING_RATE = 0.2
_MOST_SHIFT = 3.0
# Of what misses have taught, a token without a draft forgets so much: a request that was given up on is tried again by and by.
_REMEMBERED = 0.98


def may_draft(params: SamplingParams) -> bool:
    """Whether what a row samples follows from the request and the drafts before the row.

    It does not where `min_tokens` asks whether a grammar has ended: that is known of the reply only, not of the drafts.
    """
    return params.grammar is None or not params.min_tokens


class Drafter:
    """The drafts of one request, and how often they were right. What it searches is `Request.tokens`: it keeps no index."""

    __slots__ = ("_chances", "_shift")

    def __init__(self) -> None:
        self._shift = 0.0
        self._chances: list[float] = []

    def propose(self, tokens: Ids, most: int) -> tuple[Ids, list[float]]:
        """Up to `most` tokens that may follow `tokens`, and for each the chance that it and those before it are right."""
        recent = tokens[-_SEARCHED_TOKENS:]
        end, length = longest_suffix_match(recent, _LONGEST_MATCH)
        self._chances = []
        if length == 0:
            return recent[:0], []
        follow = recent[end : end + most]
        if len(follow) < most:  # the copy runs into the end: what recurs at this distance goes on doing so
            follow = np.resize(recent[end:], most)
        self._chances = [self._chance(length + i) for i in range(most)]
        chances, chance = [], 1.0
        for own in self._chances:
            chance *= own
            chances.append(chance)
        return follow, chances

    def learn(self, drafted: int, accepted: int) -> None:
        """Of the last proposal, `drafted` tokens were tried and the first `accepted` were right. Tokens behind a wrong one say
        nothing."""
        if drafted == 0:
            self._shift *= _REMEMBERED
            return
        for i in range(min(accepted + 1, drafted)):
            self._shift += _LEARNING_RATE * ((i < accepted) - self._chances[i])
        self._shift = max(-_MOST_SHIFT, min(_MOST_SHIFT, self._shift))

    def _chance(self, length: int) -> float:
        log_odds = _LOG_ODDS[min(length - 2, len(_LOG_ODDS) - 1)]
        return 1.0 / (1.0 + math.exp(-log_odds - self._shift))
