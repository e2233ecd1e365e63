"""The inter-turn cache through the engine's API: what a turn costs, forks, partial replies, scopes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from duologue import Engine, SamplingParams
from duologue.cache.miss import MissHints
from duologue.cache.scope import CacheScope
from duologue.engine.request import PromptMarks
from duologue.engine.scheduler import SchedulerConfig
from duologue.errors import CapacityError
from duologue.kernels import PAGE_TOKENS
from duologue.models.pack import pack_model
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights
from tests.engine.driving import Gate, Listener

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
PROMPT = np.random.default_rng(3).integers(3, 300, 150).tolist()


@pytest.fixture
def engine(tiny_gqa: PackedModel) -> Iterator[Engine]:
    with Engine(tiny_gqa, kv_memory_bytes=16 << 20, threads=1) as engine:
        yield engine


def test_the_next_turn_costs_its_new_tokens(engine: Engine) -> None:
    ids = list(PROMPT)
    before = 0
    for turn in range(4):
        reply = engine.generate(ids, GREEDY)
        assert reply.prompt_tokens == len(ids)
        # All but the new message; the last token of a reply is sampled, not computed.
        assert reply.cached_tokens == before
        ids = [*ids, *reply.token_ids]
        before = len(ids) - 1
        ids = [*ids, 100 + turn, 7, 8]
    stats = engine.stats()
    assert (
        stats.cache_hit_tokens_total + sum(stats.cache_miss_tokens_total.values())
        == stats.prompt_tokens_total
    )
    assert stats.cache_tokens > 0
    assert stats.cache_bytes == stats.cache_pages * engine.cache.geometry.global_page_bytes
    engine.check_integrity()


def test_an_equal_prompt_again_computes_one_token(engine: Engine) -> None:
    first = engine.generate(PROMPT, GREEDY)
    again = engine.generate(PROMPT, GREEDY)
    assert (first.cached_tokens, again.cached_tokens) == (0, len(PROMPT) - 1)
    assert again.token_ids == first.token_ids


def test_choices_compute_the_prompt_once(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=6, ignore_eos=True)
    before = engine.stats().computed_tokens_total
    choices = engine.generate_choices(PROMPT, 4, params)
    # The first computes the prompt; each other the prompt's last token, for its logits. Then 5 of each reply.
    assert engine.stats().computed_tokens_total - before == len(PROMPT) + 3 + 4 * 5
    assert [choice.cached_tokens for choice in choices] == [0] + [len(PROMPT) - 1] * 3
    assert len({choice.token_ids for choice in choices}) == 4
    for index, choice in enumerate(choices):  # each again, on an empty cache
        alone = Listener()
        engine.submit(PROMPT, params, alone, scope=CacheScope(salt=b"%d" % index), choice=index)
        assert alone.last().cached_tokens == 0
        assert [token for event in alone.events for token in event.token_ids] == list(choice.token_ids)


def test_a_reply_that_was_stopped_goes_on_from_what_it_had(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, listener = Gate(engine, monkeypatch), Listener()
    request = engine.submit(
        PROMPT, SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True), listener
    )
    gate.wait()
    gate.let(30)
    engine.abort(request)
    gate.open()
    assert listener.last().finish_reason == "abort"
    ids = [token for event in listener.events for token in event.token_ids]
    assert len(ids) >= 30
    goes_on = engine.generate([*PROMPT, *ids], GREEDY)
    assert goes_on.cached_tokens == len(PROMPT) + len(ids) - 1
    again = engine.generate(PROMPT, GREEDY)
    assert again.cached_tokens == len(PROMPT) - 1
    assert list(again.token_ids) == ids[:20]


def test_salts_share_nothing_and_keys_are_forgotten(engine: Engine) -> None:
    def run(scope: CacheScope) -> int:
        done = Listener()
        engine.submit(PROMPT, GREEDY, done, scope=scope)
        return done.last().cached_tokens

    alice, bob = (CacheScope(tenant=name, salt=name.encode(), key="k") for name in ("alice", "bob"))
    assert run(alice) == 0
    assert run(bob) == 0
    assert run(alice) == len(PROMPT) - 1
    assert engine.cache_lookup(PROMPT, alice).matched_tokens == len(PROMPT)
    forgotten = engine.cache_forget("alice", "k")
    assert forgotten.tokens >= len(PROMPT)
    assert engine.cache_lookup(PROMPT, alice).matched_tokens == 0
    assert engine.cache_lookup(PROMPT, bob).matched_tokens == len(PROMPT)
    assert engine.cache_forget("alice", "k").pages == 0
    assert engine.cache_forget_salt(b"bob").pages > 0
    assert run(bob) == 0


def test_misses_are_counted_by_cause(tiny_gqa: PackedModel) -> None:
    page_bytes = tiny_gqa.native().global_page_bytes
    with Engine(tiny_gqa, kv_memory_bytes=8 * page_bytes, threads=1) as engine:
        listener = Listener()
        marks = PromptMarks(hints=MissHints(history_begin=40))
        engine.submit(PROMPT, GREEDY, listener, marks=marks)
        listener.last()
        edited = [*PROMPT[:100], 5, *PROMPT[101:]]
        listener = Listener()
        engine.submit(edited, GREEDY, listener, marks=marks)
        assert listener.last().cached_tokens == 100
        assert engine.stats().cache_miss_tokens_total["edited"] == 50
        for i in range(4):  # needs all pages
            engine.generate([50 + i] * 7 * PAGE_TOKENS, GREEDY)
        listener = Listener()
        engine.submit(PROMPT, GREEDY, listener, marks=marks)
        assert listener.last().cached_tokens == 0
        causes = engine.stats().cache_miss_tokens_total
        assert causes["evicted"] == len(PROMPT)
        assert causes["new"] == len(PROMPT) + 4 * 7 * PAGE_TOKENS


def test_models_that_differ_in_one_code_or_in_their_key_share_no_kv(tiny_gqa: PackedModel) -> None:
    codes = tiny_gqa.arrays["layers.0.qkv.codes"].copy()
    codes.flat[0] ^= 1
    other = dataclasses.replace(tiny_gqa, arrays={**tiny_gqa.arrays, "layers.0.qkv.codes": codes}, key="")
    models = [tiny_gqa, other, *(dataclasses.replace(tiny_gqa, key=key) for key in ("", "a", "b"))]
    spaces = []
    for model in models:
        with Engine(model, kv_memory_bytes=1 << 20, threads=1) as engine:
            spaces.append(engine.cache.space_of(b""))
    assert tiny_gqa.key  # it was read from its packed file
    assert len(set(spaces)) == len(models)


def test_a_model_with_windows_keeps_its_dialogues(tiny_gqa: PackedModel) -> None:
    spec = random_spec(layers=3, heads=4, kv_heads=1, windows=(100, 0, 100), vocab=tiny_gqa.spec.vocab_size)
    model = dataclasses.replace(tiny_gqa, spec=spec, arrays=pack_model(spec, random_weights(spec, 1)))
    with Engine(model, kv_memory_bytes=4 << 20, threads=1) as engine:
        ids, expected = list(PROMPT), 0
        for turn in range(12):
            listener = Listener()
            engine.submit(ids, GREEDY, listener, marks=PromptMarks(turns=(max(1, expected),)))
            assert listener.last().cached_tokens == expected
            ids += [token for event in listener.events for token in event.token_ids]
            expected = len(ids) - 1
            ids += [20 + turn, 21, 22]
        stats, page = engine.stats(), engine.cache.geometry
        # Local pages of two windows and of the sparse checkpoints, not of the whole dialogue.
        assert engine.cache.stats().stored_pages[1] < 12
        assert stats.cache_bytes < stats.cache_pages * max(page.global_page_bytes, page.local_page_bytes)
        engine.check_integrity()


def test_a_budget_without_room_for_a_window_is_refused(tiny_gqa: PackedModel) -> None:
    with pytest.raises(CapacityError, match="--kv-memory"):
        Engine(tiny_gqa, kv_memory_bytes=1000, scheduler=SchedulerConfig())
