"""Quality of the int8 engine: perplexity of a text, and how far its predictions are from the float model's.

The engine is the one that serves: the native runner, weights, activations, queries, keys, values and probabilities in int8. The
float side is `models.reference` on the checkpoint's own weights, dequantised where the file has them quantised. Both read the text
in windows from position 0 and are compared 256 rows at a time, so that beyond the weights memory stays below 500 MB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from duologue.bench.float_attention import float_attention_logits
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.request import FixedPages, Request
from duologue.engine.runner import Runner
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.scheduler import Chunk
from duologue.engine.threads import default_threads
from duologue.errors import InvalidRequestError
from duologue.kernels import PAGE_TOKENS
from duologue.models.checkpoint import Checkpoint
from duologue.models.packed_model import PackedModel
from duologue.models.reference import head_logits, reference_hidden

WINDOW_TOKENS = 1024
"""The text is read in pieces of this length, each from position 0."""

REPLY_TOKENS = 20
"""Tokens of a greedy reply that are compared."""

NEAR_TIE = 0.1
"""A difference between logits below which the float model itself is all but undecided."""

_CHUNK_TOKENS = 256  # 50 MB of logits with a vocabulary of 49,152

Floats = npt.NDArray[np.float32]
Progress = Callable[[str], None]


def _silent(message: str) -> None:
    """Progress that nobody reads."""


@dataclass(frozen=True)
class Difference:
    """What the float model makes of a window, and how far the int8 engine is from it: sums over its rows."""

    nats: float
    divergence_nats: float
    agreeing_tokens: int


@dataclass(frozen=True)
class Window:
    """Sums over one piece of text: `nats` over the predicted tokens, a Difference's divergence over all rows."""

    rows: int
    predicted_tokens: int
    nats: float
    difference: Difference | None


@dataclass(frozen=True)
class Comparison:
    """The int8 engine against the float model: KL(float || int8) in nats and equal argmaxes, both per row."""

    perplexity: float
    ratio: float
    divergence_nats: float
    top1_agreement: float


@dataclass(frozen=True)
class Perplexity:
    """The reading of one text."""

    windows: tuple[Window, ...]

    @property
    def tokens(self) -> int:
        """Tokens read."""
        return sum(window.rows for window in self.windows)

    @property
    def predicted_tokens(self) -> int:
        """Tokens whose probability counts: all but the first of each window."""
        return sum(window.predicted_tokens for window in self.windows)

    @property
    def perplexity(self) -> float:
        """Of the int8 engine."""
        return math.exp(sum(window.nats for window in self.windows) / self.predicted_tokens)

    @property
    def comparison(self) -> Comparison | None:
        """None when the float model was not asked."""
        differences = [window.difference for window in self.windows if window.difference is not None]
        if len(differences) < len(self.windows):
            return None
        perplexity = math.exp(sum(d.nats for d in differences) / self.predicted_tokens)
        return Comparison(
            perplexity=perplexity,
            ratio=self.perplexity / perplexity,
            divergence_nats=sum(d.divergence_nats for d in differences) / self.tokens,
            top1_agreement=sum(d.agreeing_tokens for d in differences) / self.tokens,
        )


@dataclass(frozen=True)
class GreedyReply:
    """One prompt's greedy reply by the engine, judged by the float model.

    `equal_tokens` of `tokens` come before the first at which the float model would have chosen otherwise; `gap` is by how much
    its logit of its own choice is above that of the engine's there, None where no token differs.
    """

    prompt: str
    tokens: int
    equal_tokens: int
    gap: float | None

    @property
    def is_equal(self) -> bool:
        """Whether the whole reply is what the float model says."""
        return self.gap is None

    @property
    def near_tie(self) -> bool:
        """Whether the first difference is one that the float model barely decides."""
        return self.gap is not None and self.gap < NEAR_TIE


def licence_text() -> str:
    """The evaluation text that ships with the package: Apache-2.0, GPL-3, MPL-2.0, GFDL-1.3, LGPL-3 and CC0-1.0, verbatim."""
    return (files("duologue.bench") / "data" / "licences.txt").read_text(encoding="utf-8")


def chat_prompts() -> list[str]:
    """The 50 prompts that ship with the package."""
    prompts: list[str] = json.loads((files("duologue.bench") / "data" / "prompts.json").read_text("utf-8"))
    return prompts


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


def measure_perplexity(
    model: PackedModel,
    text: str,
    *,
    reference: Checkpoint | None = None,
    tokens: int | None = None,
    threads: int | None = None,
    isa: str = "",
    float_attention: bool = False,
    on_progress: Progress = _silent,
) -> Perplexity:
    """Perplexity of the first `tokens` tokens of a text (all by default); against `reference` too, if given.

    `float_attention` leaves Q, K, V and P in float32, to tell what weights and activations alone cost.
    Raises InvalidRequestError when the text has fewer than `tokens` tokens, or fewer than two.
    """
    reader = LogitReader(model, threads=threads, isa=isa, float_attention=float_attention)
    ids = reader.tokenizer.encode(text)
    wanted = len(ids) if tokens is None else tokens
    if len(ids) < wanted or wanted < 2:
        needed = (
            f"{wanted} are to be read; lower --tokens" if len(ids) >= 2 else "it takes two to predict one"
        )
        raise InvalidRequestError(f"the text is too short: it has {len(ids)} tokens, and {needed}")
    prefix = (
        [reader.tokenizer.bos_id] if reader.tokenizer.adds_bos and reader.tokenizer.bos_id is not None else []
    )
    stride = reader.context_tokens - len(prefix)
    pieces = [prefix + ids[i : min(i + stride, wanted)] for i in range(0, wanted, stride)]
    windows = []
    for i, piece in enumerate(piece for piece in pieces if len(piece) > 1):
        on_progress(f"window {i + 1} of {len(pieces)}")
        windows.append(_measure_window(reader, piece, reference))
    return Perplexity(tuple(windows))


def _measure_window(reader: LogitReader, ids: Sequence[int], reference: Checkpoint | None) -> Window:
    hidden = None if reference is None else reference_hidden(reference.spec, reference.weights, ids)
    following = np.array(ids[1:], dtype=np.int64)
    nats = reference_nats = divergence = 0.0
    agreeing = begin = 0
    for logits in reader.read(ids):
        end = begin + len(logits)
        targets = following[begin:end]  # one fewer than rows in the last chunk
        ours = _log_softmax(logits)
        nats -= _sum_at(ours, targets)
        if reference is not None and hidden is not None:
            theirs = _log_softmax(head_logits(reference.spec, reference.weights, hidden[begin:end]))
            reference_nats -= _sum_at(theirs, targets)
            agreeing += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
            np.subtract(theirs, ours, out=ours)
            np.exp(theirs, out=theirs)
            divergence += float(np.einsum("ij,ij->i", theirs, ours).sum(dtype=np.float64))
        begin = end
    difference = None if reference is None else Difference(reference_nats, divergence, agreeing)
    return Window(len(ids), len(following), nats, difference)


def measure_greedy(
    model: PackedModel,
    reference: Checkpoint,
    prompts: Sequence[str],
    *,
    threads: int | None = None,
    isa: str = "",
    on_progress: Progress = _silent,
) -> list[GreedyReply]:
    """Greedy replies of the engine to chat prompts, each judged by one pass of the float model over it.

    That pass is enough: as long as the tokens are equal, the float model would have read the same ones. A reply ends early at
    an end of text. Raises TemplateError when the model's chat template fails.
    """
    reader = LogitReader(model, threads=threads, isa=isa)
    template = ChatTemplate.for_tokenizer(model.chat_template, reader.tokenizer)
    replies = []
    for i, prompt in enumerate(prompts):
        on_progress(f"prompt {i + 1} of {len(prompts)}")
        ids = template.encode_chat(reader.tokenizer, [{"role": "user", "content": prompt}])
        reply = reader.greedy(ids, REPLY_TOKENS)
        hidden = reference_hidden(reference.spec, reference.weights, [*ids, *reply[:-1]])[-len(reply) :]
        replies.append(_judge(prompt, reply, head_logits(reference.spec, reference.weights, hidden)))
    return replies


def _judge(prompt: str, reply: Sequence[int], logits: Floats) -> GreedyReply:
    """`logits` [tokens of the reply, vocab] are the float model's, of the rows that predict the reply."""
    for i, (token, row) in enumerate(zip(reply, logits, strict=True)):
        if row.argmax() != token:
            return GreedyReply(prompt, len(reply), i, float(row.max() - row[token]))
    return GreedyReply(prompt, len(reply), len(reply), None)


def _log_softmax(logits: Floats) -> Floats:
    """A new array [n, vocab]."""
    shifted: Floats = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _sum_at(log_probabilities: Floats, targets: npt.NDArray[np.int64]) -> float:
    return float(log_probabilities[np.arange(len(targets)), targets].sum(dtype=np.float64))
