"""What one step samples with: a row of parameters for each token that it chooses, and the arrays that the rows point into."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from duologue.engine.events import TokenLogprob
from duologue.engine.request import Request
from duologue.kernels import _native
from duologue.kernels.sampling import SAMPLING_ROW, mask_words

_NO_EXTRAS = (0, 0, 0, 0, 0, -1, -1, 0)


class SamplingBatch:
    """Rows of (request, drafted): the token after `drafted`, which come after the request's own tokens.

    A row depends on its request, the drafted tokens and nothing else, so it samples the same in any batch. Requests with a grammar
    have their masks computed here; `dead_rows` are those that no token may follow, where what is sampled means nothing.
    """

    def __init__(self, rows: Sequence[tuple[Request, Sequence[int]]], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._history: list[npt.NDArray[np.int32]] = []
        self._history_tokens = 0
        self._bias_ids: list[npt.NDArray[np.int32]] = []
        self._bias_values: list[npt.NDArray[np.float32]] = []
        self._biases = 0
        self._masks: list[npt.NDArray[np.uint32]] = []
        self._packed_rows = 0
        self.dead_rows: set[int] = set()
        self._logprob_ids: npt.NDArray[np.int32] | None = None
        self._logprobs: npt.NDArray[np.float32] | None = None
        self._top = [
            -1 if request.params.logprobs is None else request.params.logprobs for request, _ in rows
        ]
        packed = b"".join([self._pack(request, drafted) for request, drafted in rows])
        columns = 1 + max(self._top, default=-1)
        if columns:
            self._logprob_ids = np.empty((len(rows), columns), dtype=np.int32)
            self._logprobs = np.empty((len(rows), columns), dtype=np.float32)
        self.sampled: npt.NDArray[np.int32] = np.empty(len(rows), dtype=np.int32)
        self.arrays = _native.SamplingArrays(
            np.frombuffer(packed, dtype=np.uint8).reshape(len(rows), SAMPLING_ROW.size),
            history=np.concatenate(self._history) if self._history else None,
            bias_ids=np.concatenate(self._bias_ids) if self._bias_ids else None,
            bias_values=np.concatenate(self._bias_values) if self._bias_values else None,
            masks=np.stack(self._masks) if self._masks else None,
            logprob_ids=self._logprob_ids,
            logprobs=self._logprobs,
        )

    def logprob(self, row: int) -> TokenLogprob | None:
        """Of the token that the row's sampling chose, once the step has run; None when its request does not ask."""
        top = self._top[row]
        if top < 0:
            return None
        assert self._logprob_ids is not None
        assert self._logprobs is not None
        ids, values = self._logprob_ids[row, : 1 + top].tolist(), self._logprobs[row, : 1 + top].tolist()
        likeliest = tuple(
            (token, value) for token, value in zip(ids[1:], values[1:], strict=True) if token >= 0
        )
        return TokenLogprob(ids[0], values[0], likeliest)

    def _pack(self, request: Request, drafted: Sequence[int]) -> bytes:
        params = request.params
        packed = SAMPLING_ROW.pack(
            params.temperature,
            params.top_p,
            params.min_p,
            params.top_k,
            params.presence_penalty,
            params.frequency_penalty,
            params.repetition_penalty,
            request.choice,
            request.seed,
            request.total_tokens + len(drafted),
            *(_NO_EXTRAS if params.is_plain else self._extras(request, drafted)),
        )
        self._packed_rows += 1
        return packed

    def _extras(self, request: Request, drafted: Sequence[int]) -> tuple[int, ...]:
        params = request.params
        bias_begin, history_begin = self._biases, self._history_tokens
        grammar = request.grammar
        if params.logit_bias:
            self._add_biases(*params.bias_arrays)
        # A grammar that has come to its end leaves nothing but an end token.
        if request.completion_tokens + len(drafted) < params.min_tokens and not (
            grammar and grammar.has_ended
        ):
            ends = np.fromiter(request.end_ids, dtype=np.int32)
            self._add_biases(ends, np.full(len(ends), -np.inf, dtype=np.float32))
        reply_begin = history_begin
        if params.penalizes:
            reply_begin += request.prompt_tokens
            self._history.append(request.tokens)
            self._history_tokens += request.total_tokens
            if drafted:
                self._history.append(np.array(drafted, dtype=np.int32))
                self._history_tokens += len(drafted)
        mask = -1
        if grammar is not None:
            mask = len(self._masks)
            self._masks.append(np.empty(mask_words(self._vocab_size), dtype=np.uint32))
            if not grammar.fill(self._masks[-1], drafted):
                self.dead_rows.add(self._packed_rows)
        top = -1 if params.logprobs is None else params.logprobs
        return (bias_begin, self._biases, history_begin, self._history_tokens, reply_begin, mask, top, 0)

    def _add_biases(self, ids: npt.NDArray[np.int32], values: npt.NDArray[np.float32]) -> None:
        self._bias_ids.append(ids)
        self._bias_values.append(values)
        self._biases += len(ids)
