"""Bytes by layer, page and step; `tests/engine/test_kv_accounting.py` compares dialogues with the engine."""

from __future__ import annotations

import dataclasses

import pytest

from duologue.cache.geometry import KvGeometry
from duologue.cache.resident import DialogueShape
from duologue.errors import UnsupportedModelError
from duologue.kernels import PAGE_TOKENS
from duologue.models.kv_accounting import GIB, KvLayer, KvModel
from duologue.models.kv_waterfall import Waterfall, grouped_kv_heads, waterfall
from duologue.models.presets import preset
from duologue.models.random_model import random_spec


def sizes(steps: Waterfall) -> dict[str, int]:
    return {step.key: step.total_bytes for step in steps.steps}


def test_a_token_takes_what_the_spec_says() -> None:
    spec = random_spec(
        layers=4, kv_heads=2, head_dim=48, windows=(64, 0, 64, 0), kv_owners=(None, None, 0, None)
    )
    model = KvModel.of_spec("m", spec)
    both = model.bytes_per_token(local=False) + model.bytes_per_token(local=True)
    assert both == spec.kv_bytes_per_token
    assert model.bytes_per_token(local=True) == 2 * (2 * 48 + 8)
    assert model.page_bytes(local=False) == PAGE_TOKENS * 2 * 2 * (2 * 48 + 8)


def test_smollm2() -> None:
    """30 layers, 9 heads, 3 KV heads of 64: nothing but grouped heads and int8 is there to save."""
    model = KvModel.of_spec("m", random_spec(layers=30, heads=9, kv_heads=3, head_dim=64))
    steps = sizes(waterfall(model, DialogueShape(640)))
    assert steps["multi_head"] == 640 * 30 * 9 * 2 * 64 * 2
    assert steps["grouped"] == steps["kv_heads"] == steps["sharing"] == 640 * 30 * 3 * 2 * 64 * 2
    assert steps["int8"] == steps["retained"] == steps["checkpoints"] == 640 * 30 * 3 * (128 + 8)


def test_the_published_architecture() -> None:
    """48 layers: 40 local with 16 owners (window 1,024), 8 global with 3; one KV head of 128, of 40."""
    model = KvModel.of_spec("m", preset("13b"))
    assert len(model.owners) == 16 + 3
    shape = DialogueShape(8192)
    way = waterfall(model, shape)
    steps = sizes(way)
    assert steps["multi_head"] == 8192 * 48 * 40 * 512
    assert steps["grouped"] == 8192 * 48 * 8 * 512
    assert steps["kv_heads"] == 8192 * 48 * 512
    assert steps["windows"] == (8192 * 8 + 1024 * 40) * 512
    assert steps["sharing"] == (8192 * 3 + 1024 * 16) * 512
    assert steps["int8"] == (8192 * 3 + 1024 * 16) * 264
    # The end's window and that of the last message's begin, [7062, 8192): 18 pages.
    assert steps["retained"] == (128 * 3 + 18 * 16) * 64 * 264
    assert (
        steps["checkpoints"] == steps["retained"] + 16 * 16 * 64 * 264
    )  # [3072, 4096); the other ends at 8192
    assert way.factor_of_step(2) == 8
    for tokens, least in ((1024, 20), (8192, 20), (32768, 20)):
        reached = waterfall(model, DialogueShape(tokens))
        assert reached.factor_of_grouped(len(reached.steps) - 1) > least


def test_a_window_is_no_more_than_the_dialogue() -> None:
    model = KvModel("m", (KvLayer(4, 4, 16, 16, window=1024),))
    steps = sizes(waterfall(model, DialogueShape(128)))
    assert steps["windows"] == steps["kv_heads"]
    assert steps["checkpoints"] == 128 * 4 * (32 + 8)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "grouped"), [(32, 8, 8), (40, 1, 8), (9, 3, 3), (4, 1, 4), (32, 32, 32), (71, 1, 1)]
)
def test_what_grouped_means(heads: int, kv_heads: int, grouped: int) -> None:
    assert grouped_kv_heads(KvLayer(heads, kv_heads, 64, 64)) == grouped


def test_dialogues_in_a_budget() -> None:
    model = KvModel.of_spec("m", preset("135m"))
    dialogue = model.dialogue(DialogueShape(9600))
    bare = dialogue.fit_into(GIB, checkpoints=False)
    assert bare * dialogue.total_bytes <= GIB < (bare + 1) * dialogue.total_bytes
    assert dialogue.fit_into(GIB, checkpoints=True) < bare
    geometry = KvGeometry.for_budget(
        GIB,
        page_tokens=PAGE_TOKENS,
        global_page_bytes=dialogue.global_page_bytes,
        local_page_bytes=dialogue.local_page_bytes,
        window_tokens=1024,
        step_tokens=512,
    )
    held = model.dialogues_in_pools(dialogue, GIB, 512, checkpoints=False)
    assert held * dialogue.pages.global_pages <= geometry.global_pages
    assert held * dialogue.pages.local_pages <= geometry.local_pages
    assert 0 < held <= bare
    assert model.dialogues_in_pools(dialogue, 1000, 512, checkpoints=False) == 0


def test_twenty_times_the_dialogues_of_smollm2() -> None:
    """The size of SmolLM2-135M, at its context of 8,192 tokens."""
    smollm2 = KvModel.of_spec("m", random_spec(layers=30, heads=9, kv_heads=3, head_dim=64))
    ours = KvModel.of_spec("m", preset("135m"))
    shape = DialogueShape(8192)
    ratio = smollm2.dialogue(shape).total_bytes / ours.dialogue(shape).total_bytes
    assert ratio > 20


def test_owners_of_another_kind_are_refused() -> None:
    layer = KvLayer(4, 1, 16, 16)
    for other in (KvLayer(4, 1, 16, 16, window=64, owner=0), KvLayer(4, 2, 16, 16, owner=0)):
        with pytest.raises(UnsupportedModelError, match="layer 1: layer 0 is of another kind"):
            KvModel("m", (layer, other))
    with pytest.raises(UnsupportedModelError, match="layer 0: 0 is no earlier layer"):
        KvModel("m", (dataclasses.replace(layer, owner=0),))
