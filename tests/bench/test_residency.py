from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from duologue import Engine
from duologue.bench.residency import Residency, ResidencyConfig, run_residency
from duologue.bench.residency_report import plot_residency, residency_dict, residency_lines
from duologue.engine.load import load_for_engine
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights, write_random_llama


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> PackedModel:
    """Two local layers to a global one, with the tokenizer of a random Llama."""
    llama = load_for_engine(write_random_llama(tmp_path_factory.mktemp("models") / "llama"))
    spec = random_spec(layers=3, heads=2, kv_heads=1, windows=(64, 64, 0), vocab=llama.spec.vocab_size)
    return dataclasses.replace(llama, spec=spec, arrays=pack_model(spec, random_weights(spec, 1)))


def run(model: PackedModel, kv_memory_bytes: int) -> Residency:
    config = ResidencyConfig(
        dialogues=12,
        messages=20,
        message_tokens=20,
        persona_tokens=30,
        reply_tokens=4,
        rounds=3,
        regenerate_rate=0.3,
    )
    with Engine(model, kv_memory_bytes=kv_memory_bytes, threads=1) as engine:
        return run_residency(engine, config)


def test_dialogues_that_fit_are_all_hits(hybrid: PackedModel) -> None:
    result = run(hybrid, 8 << 20)
    assert len(result.visits) == 36
    assert result.hit_rate_by_query == 1.0
    assert result.hit_rate_by_token == 1.0
    assert any(visit.regenerated for visit in result.visits)
    figures = residency_dict(result)
    assert figures["stored_bytes"] <= figures["budget_bytes"] <= 8 << 20
    assert figures["dialogues_per_gib"] == pytest.approx(12 * 2**30 / result.stored_bytes)
    text = "\n".join(residency_lines(result))
    assert "12 dialogues of 20 messages, 430 tokens each" in text
    assert "100.00 % of queries hit" in text


def test_negative_control_dialogues_that_do_not_fit_miss(hybrid: PackedModel) -> None:
    result = run(hybrid, 400_000)
    assert result.hit_rate_by_query < 0.5
    assert result.hit_rate_by_token < 0.9


def test_the_plot_is_a_png(hybrid: PackedModel, tmp_path: Path) -> None:
    plot_residency(tmp_path / "residency.png", run(hybrid, 8 << 20))
    assert (tmp_path / "residency.png").read_bytes().startswith(b"\x89PNG")


def test_dialogues_that_exceed_the_context_are_refused(hybrid: PackedModel) -> None:
    with (
        Engine(hybrid, kv_memory_bytes=8 << 20, threads=1) as engine,
        pytest.raises(ValueError, match="messages"),
    ):
        run_residency(engine, ResidencyConfig(dialogues=1, messages=200))


@pytest.mark.parametrize("field", ["dialogues", "messages", "rounds"])
def test_sizes_that_make_no_dialogue_are_named(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} 0"):
        ResidencyConfig(**{"dialogues": 1, field: 0})
