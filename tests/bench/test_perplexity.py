from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from duologue.bench.logit_reader import LogitReader
from duologue.bench.perplexity import licence_text, measure_perplexity
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.load import calibration_chats, calibration_text, load_for_engine
from duologue.errors import InvalidRequestError
from duologue.models.checkpoint import Checkpoint
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_weights
from duologue.models.reference import reference_logits
from duologue.models.source import resolve

TEXT = licence_text()[:1500]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def test_the_sums_are_those_of_the_definition(tiny_packed: PackedModel, tiny_checkpoint: Checkpoint) -> None:
    reading = measure_perplexity(tiny_packed, TEXT, reference=tiny_checkpoint, threads=1)
    ids = Tokenizer.from_bytes(tiny_packed.tokenizer).encode(TEXT)
    assert 1024 < len(ids) <= 2048
    reader = LogitReader(tiny_packed, threads=2)
    ours_nats, theirs_nats, divergence, agreeing = 0.0, 0.0, 0.0, 0
    for piece in (ids[:1024], ids[1024:]):
        ours = _log_softmax(np.concatenate([chunk.copy() for chunk in reader.read(piece)]))
        theirs = _log_softmax(reference_logits(tiny_checkpoint.spec, tiny_checkpoint.weights, piece))
        rows = np.arange(len(piece) - 1)
        ours_nats -= ours[rows, piece[1:]].sum()
        theirs_nats -= theirs[rows, piece[1:]].sum()
        divergence += (np.exp(theirs) * (theirs - ours)).sum()
        agreeing += (ours.argmax(1) == theirs.argmax(1)).sum()
    assert (reading.tokens, reading.predicted_tokens) == (len(ids), len(ids) - 2)
    assert reading.perplexity == pytest.approx(math.exp(ours_nats / (len(ids) - 2)), rel=1e-5)
    comparison = reading.comparison
    assert comparison is not None
    assert comparison.perplexity == pytest.approx(math.exp(theirs_nats / (len(ids) - 2)), rel=1e-5)
    assert comparison.ratio == pytest.approx(reading.perplexity / comparison.perplexity)
    assert comparison.divergence_nats == pytest.approx(divergence / len(ids), rel=1e-3)
    assert comparison.top1_agreement == pytest.approx(agreeing / len(ids))
    assert comparison.top1_agreement > 0.8


def test_another_model_as_reference_is_seen(tiny_packed: PackedModel, tiny_checkpoint: Checkpoint) -> None:
    other = replace(tiny_checkpoint, weights=random_weights(tiny_checkpoint.spec, 99))
    own, foreign = (
        measure_perplexity(tiny_packed, TEXT, reference=reference, tokens=300, threads=1).comparison
        for reference in (tiny_checkpoint, other)
    )
    assert own is not None
    assert foreign is not None
    assert foreign.divergence_nats > 100 * own.divergence_nats
    assert foreign.top1_agreement < 0.2


def test_without_a_reference_only_the_engine_is_read(tiny_packed: PackedModel) -> None:
    reading = measure_perplexity(tiny_packed, TEXT, tokens=200, threads=1)
    assert reading.tokens == 200
    assert reading.comparison is None


def test_a_last_window_of_one_token_predicts_nothing(tiny_packed: PackedModel) -> None:
    messages: list[str] = []
    reading = measure_perplexity(tiny_packed, TEXT, tokens=1025, threads=1, on_progress=messages.append)
    assert [window.rows for window in reading.windows] == [1024]
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("text", "tokens", "says"), [("", None, "0 tokens"), ("a", None, "1 token"), ("abc", 9, "--tokens")]
)
def test_a_short_text_is_refused(tiny_packed: PackedModel, text: str, tokens: int | None, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        measure_perplexity(tiny_packed, text, tokens=tokens)


def test_the_text_and_the_calibration_text_share_no_phrase() -> None:
    def phrases(text: str) -> set[tuple[str, ...]]:
        words = text.lower().split()
        return {tuple(words[i : i + 6]) for i in range(len(words) - 5)}

    assert len(phrases(licence_text())) > 10_000
    chats = " ".join(message["content"] for chat in calibration_chats() for message in chat)
    assert not phrases(licence_text()) & (phrases(calibration_text()) | phrases(chats))


def test_smollm2_in_int8_predicts_like_the_float_model(smollm2_path: Path) -> None:
    """A glance at the first 256 tokens; docs/quality.md has the whole measurement."""
    packed = load_for_engine(smollm2_path)
    assert len(Tokenizer.from_bytes(packed.tokenizer).encode(licence_text())) >= 20_000
    comparison = measure_perplexity(
        packed, licence_text(), reference=resolve(smollm2_path).read(), tokens=256
    ).comparison
    assert comparison is not None
    assert abs(comparison.ratio - 1) < 0.1  # 255 predictions alone are uncertain by several per cent
    assert comparison.top1_agreement > 0.88
    assert comparison.divergence_nats < 0.05
