"""The same tokens give the same logits, bit for bit, whatever runs beside them and however the work is cut."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from duologue import Engine, SamplingParams
from duologue.engine.scheduler import SchedulerConfig
from duologue.kernels import PAGE_TOKENS
from duologue.models.packed_model import PackedModel
from tests.engine.forward_case import ForwardCase, Ids, pages_of
from tests.kernels.isas import ISAS

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, top_p=0.9, seed=42, max_tokens=40, ignore_eos=True)


def prompt(model: PackedModel, n: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(3, model.spec.vocab_size, n).astype(np.int32)


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunks_do_not_matter(tiny_model: PackedModel, chunk: int) -> None:
    ids = prompt(tiny_model, 1200)  # 19 key tiles, 3 splits
    whole = ForwardCase(tiny_model, threads=2).run(ids, len(ids))
    ids = ids[: 150 if chunk == 1 else None]
    np.testing.assert_array_equal(ForwardCase(tiny_model, threads=2).run(ids, chunk), whole[: len(ids)])


def test_threads_and_instruction_sets_do_not_matter(tiny_model: PackedModel) -> None:
    ids = prompt(tiny_model, 1100)
    expected = ForwardCase(tiny_model, threads=1, isa=ISAS[0]).run(ids, 512)
    for isa in ISAS:
        for threads in (1, 2):
            got = ForwardCase(tiny_model, threads=threads, isa=isa).run(ids, 300)
            np.testing.assert_array_equal(got, expected)


def test_smollm2_is_exact_over_splits_chunks_threads_and_neighbours(smollm2: PackedModel) -> None:
    ids = prompt(smollm2, 540)  # over the end of the first split; tiny models go over that of the second
    expected = ForwardCase(smollm2, threads=1).run(ids, len(ids))
    case = ForwardCase(smollm2, threads=2)
    np.testing.assert_array_equal(case.run(ids, 512), expected)
    np.testing.assert_array_equal(case.run(ids[:200], 64), expected[:200])
    np.testing.assert_array_equal(case.run(ids[:70], 7), expected[:70])
    np.testing.assert_array_equal(case.run(ids[:20], 1), expected[:20])
    # Among 31 others of other lengths, over the end of the split.
    one = case.request(ids)
    case.step([(one, 490)])
    others = [case.request(prompt(smollm2, 20 + i, seed=i)) for i in range(31)]
    for i in range(490, 520, 6):
        rows = case.step([*((other, 3) for other in others if other.computed + 3 <= 20), (one, 6)])
        np.testing.assert_array_equal(rows[-1], expected[i : i + 6])


@pytest.mark.parametrize("isa", ISAS)
def test_smollm2_gives_the_same_bits_on_each_instruction_set(smollm2: PackedModel, isa: str) -> None:
    ids = prompt(smollm2, 70, seed=1)
    expected = ForwardCase(smollm2, threads=2).run(ids, 70)
    np.testing.assert_array_equal(ForwardCase(smollm2, threads=2, isa=isa).run(ids, 70), expected)


def test_negative_control_a_changed_weight_byte_changes_the_logits(tiny_model: PackedModel) -> None:
    ids = prompt(tiny_model, 40)
    expected = ForwardCase(tiny_model, threads=2).run(ids, 40)
    arrays = dict(tiny_model.arrays)
    down = arrays["layers.0.down.0.codes"].copy()
    down.reshape(-1).view(np.uint8)[5] ^= 0x20
    arrays["layers.0.down.0.codes"] = down
    changed = dataclasses.replace(tiny_model, arrays=arrays)
    assert (ForwardCase(changed, threads=2).run(ids, 40) != expected).any()


def test_negative_control_a_changed_kv_byte_changes_the_logits(tiny_model: PackedModel) -> None:
    ids = prompt(tiny_model, 200)
    case = ForwardCase(tiny_model, threads=2)
    clean, corrupt = case.request(ids), case.request(ids)
    case.step([(clean, 199), (corrupt, 199)])
    # The exponent of one value's scale; a code's low bits may vanish in the next rounding.
    head_dim = tiny_model.spec.layers[0].head_dim
    value_scale = PAGE_TOKENS * (2 * head_dim + 4) + 4 * 9
    case.runner.kv_pools[0][pages_of(corrupt)[1], value_scale + 3] ^= 0x02
    a, b = case.step([(clean, 1), (corrupt, 1)])
    assert (a != b).any()


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_replies_are_equal_alone_in_a_batch_and_after_preemption(
    tiny_model: PackedModel, params: SamplingParams
) -> None:
    prompts = [prompt(tiny_model, 30 + 5 * i, seed=i).tolist() for i in range(12)]
    with Engine(tiny_model, kv_memory_bytes=64 << 20, threads=1) as engine:
        alone = [engine.generate(ids, params).token_ids for ids in prompts]
        assert engine.stats().preemptions_total == 0
    page_bytes = tiny_model.native().global_page_bytes
    config = SchedulerConfig(max_batch_tokens=50, max_num_seqs=12, prefill_tokens_while_decoding=20)
    with Engine(tiny_model, kv_memory_bytes=9 * page_bytes, threads=2, scheduler=config) as engine:
        together = [completion.token_ids for completion in engine.generate_batch(prompts, params)]
        assert engine.stats().preemptions_total > 0
        assert engine.stats().prompt_tokens_total == sum(
            map(len, prompts)
        )  # recomputed ones are not counted again
        engine.check_integrity()
    assert together == alone
    assert len(set(alone)) > 1


def test_smollm2_token_by_token_over_a_tile_border(smollm2: PackedModel) -> None:
    ids = prompt(smollm2, 70, seed=2)
    expected = ForwardCase(smollm2, threads=1).run(ids, 70)
    case = ForwardCase(smollm2, threads=2)
    request = case.request(ids)
    rows = case.step([(request, 60)])
    while request.computed < 70:
        rows += case.step([(request, 1)])
    np.testing.assert_array_equal(np.concatenate(rows), expected)


def test_smollm2_replies_are_equal_after_preemption(smollm2: PackedModel) -> None:
    prompts = [prompt(smollm2, 52 + i, seed=i).tolist() for i in range(3)]
    params = SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True)
    with Engine(smollm2, kv_memory_bytes=64 << 20, threads=2) as engine:
        alone = [engine.generate(ids, params).token_ids for ids in prompts]
    # Each needs a second page within its reply, and there are four for three.
    config = SchedulerConfig(speculation_tokens=0)
    page_bytes = smollm2.native().global_page_bytes
    with Engine(smollm2, kv_memory_bytes=4 * page_bytes, threads=2, scheduler=config) as engine:
        together = [completion.token_ids for completion in engine.generate_batch(prompts, params)]
        assert engine.stats().preemptions_total > 0
        engine.check_integrity()
    assert together == alone


def test_a_recomputed_reply_gives_the_logits_it_had(tiny_model: PackedModel) -> None:
    ids = prompt(tiny_model, 160)
    case = ForwardCase(tiny_model, threads=2)
    request = case.request(ids)
    rows = case.step([(request, 90)])
    while request.computed < len(ids):
        rows += case.step([(request, 1)])
    case.release(request)
    # As the scheduler does after a preemption: other pages, everything from the start in one go.
    again = case.request(ids)
    assert pages_of(again).tolist() != pages_of(request).tolist()
    (recomputed,) = case.step([(again, len(ids))])
    np.testing.assert_array_equal(recomputed, np.concatenate(rows))
