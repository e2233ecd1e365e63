"""One request inside the engine: its tokens, its pages and how far it has been computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from duologue.cache.kv_cache import CachedSequence, CacheLookup
from duologue.cache.miss import NO_HINTS, MissHints
from duologue.cache.scope import DEFAULT_SCOPE, CacheScope
from duologue.dialogue.detokenizer import Detokenizer
from duologue.dialogue.stop import StopMatcher
from duologue.engine.drafter import Drafter, may_draft
from duologue.engine.events import TokenEvent
from duologue.engine.grammars import ReplyGrammar
from duologue.engine.sampling_params import SamplingParams


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class PageTables(Protocol):
    """Where a sequence's KV lies."""

    def copy_table(self, kind: int, out: npt.NDArray[np.int32]) -> None:
        """Write the page ids of one kind by position / page size, as many as `out` has room for."""


class FixedPages:
    """Pages chosen by hand, the same numbers in both pools, for benchmarks and tests that run without a cache."""

    def __init__(self, pages: npt.NDArray[np.int32]) -> None:
        self.pages = pages

    def copy_table(self, kind: int, out: npt.NDArray[np.int32]) -> None:
        """Pages behind the last one are 0: they are another sequence's columns and are not read."""
        known = self.pages[: len(out)]
        out[: len(known)] = known
        out[len(known) :] = 0


@dataclass(frozen=True)
class PromptMarks:
    """What the dialogue layer knows of a prompt, in token positions.

    `turns`: where the last user message begins and where the reply does. `shared`: where what other dialogues have in common
    ends. `hints`: what helps to say why not all of it is stored.
    """

    turns: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    hints: MissHints = NO_HINTS


NO_MARKS = PromptMarks()


class Request:
    """A prompt and the reply being made.

    Only the engine's thread changes it, `abort_requested` and `keep` excepted. `tokens[:computed]` have their KV in `tables`; the
    last token of a reply is sampled but not yet computed.
    """

    def __init__(
        self,
        number: int,
        prompt_ids: Sequence[int] | npt.NDArray[np.int32],
        params: SamplingParams,
        *,
        seed: int,
        max_total_tokens: int,
        on_event: Callable[[TokenEvent], None],
        detokenizer: Detokenizer | None,
        stop_matcher: StopMatcher | None,
        choice: int = 0,
        scope: CacheScope = DEFAULT_SCOPE,
        marks: PromptMarks = NO_MARKS,
        end_ids: frozenset[int] = frozenset(),
        grammar: ReplyGrammar | None = None,
    ) -> None:
        self.number = number
        self.params = params
        self.seed = seed
        self.choice = choice
        self.scope = scope
        self.marks = marks
        self.end_ids = end_ids  # tokens that end the reply and are not shown
        self.grammar = grammar
        self.max_total_tokens = max_total_tokens
        self.on_event = on_event
        self.detokenizer = detokenizer
        self.stop_matcher = stop_matcher
        self.state = RequestState.WAITING
        self.abort_requested = False
        self.keep = True  # what it computes; any thread may clear it when its owner is forgotten
        self.prompt_tokens = len(prompt_ids)
        self.total_tokens = len(prompt_ids)
        self.computed = 0
        self.cached_tokens: int | None = None  # of the prompt, when it was first admitted
        self.first_lookup: CacheLookup | None = None
        self.sealed = False
        self.drafter = Drafter() if may_draft(params) else None
        self.sequence: CachedSequence | None = None
        self.tables: PageTables | None = None
        # Room for the prompt at once; replies grow it by doubling, so that a short reply costs no context-sized buffer.
        self._tokens: npt.NDArray[np.int32] = np.array(prompt_ids, dtype=np.int32)

    @property
    def completion_tokens(self) -> int:
        """Tokens sampled so far."""
        return self.total_tokens - self.prompt_tokens

    @property
    def missing_tokens(self) -> int:
        """Tokens still to be computed before the next one can be sampled; 1 for a stream that decodes."""
        return self.total_tokens - self.computed

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Prompt and reply so far, [total_tokens]."""
        return self._tokens[: self.total_tokens]

    def append(self, token: int) -> None:
        """Add a sampled token."""
        if self.total_tokens == len(self._tokens):
            capacity = min(max(2 * self.total_tokens, 64), max(self.max_total_tokens, self.total_tokens + 1))
            grown = np.empty(capacity, dtype=np.int32)
            grown[: self.total_tokens] = self._tokens
            self._tokens = grown
        self._tokens[self.total_tokens] = token
        self.total_tokens += 1
