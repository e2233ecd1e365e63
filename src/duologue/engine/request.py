"""One request inside the engine: its tokens, its pages and how far it has been computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from duologue.dialogue.detokenizer import Detokenizer
from duologue.dialogue.stop import StopMatcher
from duologue.engine.events import TokenEvent
from duologue.engine.sampling_params import SamplingParams


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Request:
    """A prompt and the reply being made.

    Only the engine's thread changes it, `abort_requested` excepted. `tokens[:computed]` have their KV in `pages`; the last
    token of a reply is sampled but not yet computed.
    """

    def __init__(
        self,
        number: int,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        seed: int,
        max_total_tokens: int,
        page_columns: int,
        on_event: Callable[[TokenEvent], None],
        detokenizer: Detokenizer | None,
        stop_matcher: StopMatcher | None,
    ) -> None:
        self.number = number
        self.params = params
        self.seed = seed
        self.max_total_tokens = max_total_tokens
        self.on_event = on_event
        self.detokenizer = detokenizer
        self.stop_matcher = stop_matcher
        self.state = RequestState.WAITING
        self.abort_requested = False
        self.prompt_tokens = len(prompt_ids)
        self.total_tokens = len(prompt_ids)
        self.computed = 0
        self.page_count = 0
        self.pages: npt.NDArray[np.int32] = np.zeros(page_columns, dtype=np.int32)
        # Room for the prompt at once; replies grow it by doubling, so that a short reply costs no context-sized buffer.
        self._tokens: npt.NDArray[np.int32] = np.array(prompt_ids, dtype=np.int32)

    @property
    def completion_tokens(self) -> int:
        """Tokens sampled so far."""
        return self.total_tokens - self.prompt_tokens

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
