"""What `models/kv_accounting.py` says a dialogue keeps is what the engine's cache has allocated, to the byte."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.cache.resident import DialogueShape
from duologue.engine.engine import Engine
from duologue.engine.request import PromptMarks
from duologue.engine.sampling_params import SamplingParams
from duologue.models.kv_accounting import KvModel
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights
from duologue.models.spec import ModelSpec
from tests.engine.cached_case import CachedCase, packed
from tests.engine.driving import Listener

VOCAB = 64


@dataclass(frozen=True)
class Turn:
    """Tokens of a message, of which the last `closing` are the template's, and sampled tokens of the reply to it."""

    message: int
    closing: int
    reply: int


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Multi-head to multi-query, any pattern of windows, any sharing among layers of a kind."""
    windows = draw(st.lists(st.sampled_from([0, 0, 64, 128]), min_size=1, max_size=5))
    owners: list[int | None] = []
    for i, window in enumerate(windows):
        earlier = [j for j in range(i) if windows[j] == window and owners[j] is None]
        owners.append(draw(st.sampled_from([None, *earlier])))
    return random_spec(
        layers=len(windows),
        heads=4,
        kv_heads=draw(st.sampled_from([1, 2, 4])),
        head_dim=draw(st.sampled_from([16, 48])),
        mlp=32,
        hidden=32,
        vocab=VOCAB,
        windows=windows,
        kv_owners=owners,
    )


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    message = draw(st.integers(1, 150))
    return Turn(message, draw(st.integers(0, min(6, message - 1))), draw(st.integers(2, 40)))


def play(
    case: CachedCase, persona: int, dialogue: list[Turn], generator: np.random.Generator
) -> DialogueShape:
    """The dialogue's shape once its last turn is over."""
    ids = generator.integers(0, VOCAB, persona).tolist()
    for turn in dialogue:
        begin = len(ids)
        ids += generator.integers(0, VOCAB, turn.message).tolist()
        marks = PromptMarks(turns=(begin, len(ids) - turn.closing), shared=(persona,) if persona else ())
        ids = case.run(ids, turn.reply, marks=marks).tokens.tolist()
    # The last token of a reply is sampled, not computed.
    return DialogueShape(len(ids) - 1, turn.message, turn.reply - 1, turn.closing, persona)


@settings(max_examples=60, deadline=None)
@given(
    spec=specs(),
    persona=st.sampled_from([0, 0, 30, 64, 150]),
    dialogue=st.lists(turns(), min_size=2, max_size=5),
    batch=st.sampled_from([33, 96, 512]),
    seed=st.integers(0, 5),
)
def test_a_dialogue_at_rest_takes_what_is_counted(
    spec: ModelSpec, persona: int, dialogue: list[Turn], batch: int, seed: int
) -> None:
    model = packed(spec)
    kv = KvModel.of_spec("random", spec)
    assert kv.page_bytes(local=False) == model.native().global_page_bytes
    assert kv.page_bytes(local=True) == model.native().local_page_bytes
    case = CachedCase(model, global_pages=40, local_pages=40, max_batch_tokens=batch)
    case.record = False
    shape = play(case, persona, dialogue, np.random.default_rng(seed))
    counted, stats = kv.dialogue(shape), case.cache.stats()
    local = counted.pages.local_pages + counted.pages.sparse_pages
    assert stats.stored_pages == (counted.pages.global_pages, local)
    pools = [pool.nbytes for pool in case.runner.kv_pools]
    shares = [pool * count / 40 for pool, count in zip(pools, stats.stored_pages, strict=True)]
    assert sum(shares) == counted.total_bytes + counted.checkpoint_bytes


def test_the_engine_reports_the_counted_bytes(tiny_gqa: PackedModel) -> None:
    spec = random_spec(
        layers=4,
        kv_heads=1,
        windows=(64, 64, 0, 64),
        kv_owners=(None, 0, None, None),
        vocab=tiny_gqa.spec.vocab_size,
    )
    model = dataclasses.replace(tiny_gqa, spec=spec, arrays=pack_model(spec, random_weights(spec, 1)))
    kv = KvModel.of_spec("random", spec)
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    with Engine(model, kv_memory_bytes=4 << 20, threads=1) as engine:
        expected = 0
        for dialogue in range(3):
            ids: list[int] = []
            for turn in range(4):
                begin = len(ids)
                ids += [10 + dialogue] * (100 + turn)
                listener = Listener()
                marks = PromptMarks(turns=(begin, len(ids) - 5))
                engine.submit(ids, params, listener, marks=marks)
                listener.last()
                ids += [token for event in listener.events for token in event.token_ids]
            counted = kv.dialogue(DialogueShape(len(ids) - 1, 103, 29, 5))
            assert counted.checkpoint_bytes > 0
            expected += counted.total_bytes + counted.checkpoint_bytes
            assert engine.stats().cache_bytes == expected
        engine.check_integrity()
