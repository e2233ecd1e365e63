"""Quality of the int8 engine: perplexity of a text, and how far its predictions are from the float model's.

The engine is the one that serves: the native runner, weights, activations, queries, keys, values and probabilities in int8. The
float side is `models.reference` on the checkpoint's own weights, dequantised where the file has them quantised. Both read the text
in windows from position 0 and are compared 256 rows at a time, so that beyond the weights memory stays below 500 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from duologue.bench.logit_reader import LogitReader
from duologue.errors import InvalidRequestError
from duologue.models.checkpoint import Checkpoint
from duologue.models.packed_model import PackedModel
from duologue.models.reference import head_logits, reference_hidden

Floats = npt.NDArray[np.float32]


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


def licence_text() -> str:
    """The evaluation text that ships with the package: Apache-2.0, GPL-3, MPL-2.0, GFDL-1.3, LGPL-3 and CC0-1.0, verbatim."""
    return (files("duologue.bench") / "data" / "licences.txt").read_text(encoding="utf-8")


def measure_perplexity(
    model: PackedModel,
    text: str,
    *,
    reference: Checkpoint | None = None,
    tokens: int | None = None,
    threads: int | None = None,
    isa: str = "",
    float_attention: bool = False,
    on_progress: Callable[[str], None] = lambda message: None,
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


def _log_softmax(logits: Floats) -> Floats:
    """A new array [n, vocab]."""
    shifted: Floats = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted


def _sum_at(log_probabilities: Floats, targets: npt.NDArray[np.int64]) -> float:
    return float(log_probabilities[np.arange(len(targets)), targets].sum(dtype=np.float64))
