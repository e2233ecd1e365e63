"""The engine's runner on one model, driven for its logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from duologue.bench.float_attention import float_attention_logits
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.chunk import Chunk
from duologue.engine.request import FixedPages, Request
from duologue.engine.runner import Runner
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.threads import default_threads
from duologue.errors import InvalidRequestError
from duologue.kernels import PAGE_TOKENS
from duologue.models.packed_model import PackedModel

WINDOW_TOKENS = 1024
"""What is read at once, at most: texts in pieces of this length, each from position 0."""

_CHUNK_TOKENS = 256  # 50 MB of logits with a vocabulary of 49,152

Floats = npt.NDArray[np.float32]


class LogitReader:
    """The engine's runner on one model, driven for its logits, one sequence at a time."""

    def __init__(
        self,
        model: PackedModel,
        *,
        threads: int | None = None,
        isa: str = "",
        float_attention: bool = False,
    ) -> None:
        """`float_attention` reads with Q, K, V and P in float32, which the engine cannot: slower, and for `read` alone."""
        self.model = model
        self._float_attention = float_attention
        self.context_tokens = min(WINDOW_TOKENS, model.spec.context_tokens)
        self._pages = -(-self.context_tokens // PAGE_TOKENS)
        self._runner = Runner(
            model.native(),
            vocab_size=model.spec.vocab_size,
            page_count=self._pages,
            local_page_count=self._pages,
            threads=threads or default_threads(),
            isa=isa,
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's."""
        return Tokenizer.from_bytes(self.model.tokenizer)

    def read(self, ids: Sequence[int]) -> Iterator[Floats]:
        """Logits [rows, vocab] of at most 256 tokens at a time, each valid until the next is asked for."""
        if self._float_attention:
            yield from float_attention_logits(self.model, ids, chunk_tokens=_CHUNK_TOKENS)
            return
        request = self._request(ids)
        while request.computed < len(ids):
            yield self._step(request, min(_CHUNK_TOKENS, len(ids) - request.computed))

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that follow `ids`, each the likeliest; ends with the model's end of text."""
        request = self._request(ids)
        logits = self._step(request, len(ids))
        while True:
            request.append(int(logits[-1].argmax()))
            reply: list[int] = request.tokens[len(ids) :].tolist()
            if len(reply) == count or reply[-1] in self.tokenizer.eos_ids:
                return reply
            logits = self._step(request, 1)

    def _request(self, ids: Sequence[int]) -> Request:
        if len(ids) > self.context_tokens:
            raise InvalidRequestError(
                f"{len(ids)} tokens exceed the {self.context_tokens} that are read at once; shorten the prompt"
            )
        request = Request(
            0,
            ids,
            SamplingParams(temperature=0.0),
            seed=0,
            max_total_tokens=self.context_tokens,
            on_event=lambda event: None,
            detokenizer=None,
            stop_matcher=None,
        )
        request.tables = FixedPages(np.arange(self._pages, dtype=np.int32))
        return request

    def _step(self, request: Request, count: int) -> Floats:
        _, logits = self._runner.step([Chunk(request, count, samples=False)], every_logit=True)
        request.computed += count
        return logits
