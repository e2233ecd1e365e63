"""Drafts change when tokens come and never which; and what they leave in the cache is what decoding alone leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from duologue import Completion, Engine, Grammar, SamplingParams, TokenLogprob
from duologue.cache.kv_cache import GLOBAL, LOCAL
from duologue.cache.scope import DEFAULT_SCOPE
from duologue.engine.chunk import Chunk
from duologue.engine.drafter import Ids
from duologue.engine.grammars import Grammars
from duologue.engine.request import PromptMarks, Request
from duologue.engine.scheduler import SchedulerConfig
from duologue.engine.speculation import Speculation
from duologue.engine.step_cost import StepCost
from duologue.kernels import PAGE_TOKENS
from duologue.kernels.sampling import mask_words
from duologue.models.packed_model import PackedModel
from tests.engine.cached_case import GQA, MQA_WINDOWS, CachedCase, FreshRunner, packed
from tests.engine.driving import WAIT_S, Listener, assert_nothing_is_held
from tests.engine.oracle import OracleSpeculation

OFF = SchedulerConfig(speculation_tokens=0)
_KINDS = {"gqa": GQA, "mqa_windows": MQA_WINDOWS}


class FixedCost(StepCost):
    """Rows at a known price, whatever this machine does at the moment."""

    def __init__(self, row_s: float) -> None:
        super().__init__()
        for rows in (1, 2, 4, 8):
            super().observe(rows, 1.0 + row_s * (rows - 1))
        self._row_s = row_s

    def observe(self, rows: int, seconds: float) -> None:
        pass

    @property
    def row_s(self) -> float:
        return self._row_s

    def step_s(self, rows: float) -> float:
        return 1.0 + self._row_s * (rows - 1)


@pytest.fixture(scope="module", params=_KINDS)
def model(request: pytest.FixtureRequest) -> PackedModel:
    return packed(_KINDS[request.param])


@pytest.fixture(scope="module")
def fresh(model: PackedModel) -> FreshRunner:
    return FreshRunner(model, 512)


def case_for(model: PackedModel, *, global_pages: int, batch: int = 96, threads: int = 1) -> CachedCase:
    return CachedCase(
        model, global_pages=global_pages, local_pages=16, max_batch_tokens=batch, threads=threads
    )


Plan = list[tuple[list[int], int, int]]  # prompt, tokens of reply, steps before the next is submitted


def dialogues(rng: np.random.Generator, vocab: int) -> Plan:
    """Prompts that share beginnings, so that the cache and copies of its pages matter."""
    plan: Plan = []
    for _ in range(int(rng.integers(3, 6))):
        ids: list[int] = rng.integers(0, vocab, int(rng.integers(1, 130))).tolist()
        if plan and rng.random() < 0.6:
            before = plan[int(rng.integers(len(plan)))][0]
            ids = before[: int(rng.integers(1, len(before) + 1))] + ids[:40]
        plan.append((ids, int(rng.integers(1, 90)), int(rng.integers(0, 25))))
    return plan


def play(case: CachedCase, plan: Plan, speculation: Speculation, *, aborts: float = 0.0) -> list[Request]:
    case.worker.scheduler.speculation = speculation
    rng = np.random.default_rng(len(plan))
    requests = []
    for i, (ids, reply, steps) in enumerate(plan):
        marks = PromptMarks(turns=(max(1, len(ids) - 10),))
        requests.append(case.submit(ids, reply, marks=marks, seed=i))
        for _ in range(steps):
            case.step()
        requests[-1].abort_requested = rng.random() < aborts
    case.drain()
    return requests


def stored_pages(case: CachedCase, ids: Sequence[int]) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """(kind, column) and bytes of each full page that the cache holds of `ids`."""
    tokens = np.array([*ids, 0], dtype=np.int32)
    sequence = case.cache.open(tokens, DEFAULT_SCOPE)
    for kind in (GLOBAL, LOCAL):
        table = np.full(sequence.cached_tokens // PAGE_TOKENS, -1, dtype=np.int32)
        if case.runner.kv_pools[kind].size:
            sequence.copy_table(kind, table)
            for column, page in enumerate(table.tolist()):
                if page >= 0:
                    yield (kind, column), case.runner.kv_pools[kind][page].copy()
    sequence.close(tokens, sequence.cached_tokens, keep=False)


def assert_stored_pages_are_right(case: CachedCase, ids: Sequence[int]) -> None:
    """Byte for byte what computing the tokens in one go would have stored."""
    whole = CachedCase(case.model, global_pages=8, local_pages=16, max_batch_tokens=512)
    whole.run(ids, 1)
    expected = dict(stored_pages(whole, ids))
    for place, page in stored_pages(case, ids):
        if place in expected:  # local pages may have been kept at other places
            np.testing.assert_array_equal(page, expected[place], err_msg=str(place))


@pytest.mark.parametrize("seed", range(5))
def test_any_drafts_give_the_tokens_logits_and_kv_of_plain_decoding(
    model: PackedModel, fresh: FreshRunner, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    plan = dialogues(rng, model.spec.vocab_size)
    roomy = case_for(model, global_pages=60)
    replies = {r.number: r.tokens.tolist() for r in play(roomy, plan, Speculation(roomy.cache, 0))}
    # Few pages: requests lose theirs to each other, and what is stored is evicted. Some are aborted, some batches are tiny.
    case = case_for(
        model, global_pages=int(rng.integers(5, 9)), batch=int(rng.choice([9, 33, 96])), threads=2
    )
    oracle = OracleSpeculation(case.cache, 8, replies, vocab=model.spec.vocab_size, seed=seed)
    requests = play(case, plan, oracle, aborts=0.2)
    for request in requests:
        expected = replies[request.number]
        tokens = request.tokens.tolist()
        assert tokens == expected[: len(tokens)]
        assert len(tokens) == len(expected) or request.abort_requested
        case.assert_exact(request, fresh)
        assert_stored_pages_are_right(case, tokens)
    assert 0 < case.worker.accepted_tokens_total < case.worker.drafted_tokens_total
    # What is stored of partial pages serves the next turn as it should.
    case.worker.scheduler.speculation = Speculation(case.cache, 0)
    for request in requests:
        case.assert_exact(case.run([*request.tokens.tolist(), 1, 2], 2), fresh)


def test_negative_control_kv_that_a_wrong_draft_left_is_noticed(
    model: PackedModel, fresh: FreshRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the KV of a wrong draft stayed where that of the sampled token belongs."""
    ids = np.random.default_rng(1).integers(0, model.spec.vocab_size, 30).tolist()
    replies = {0: case_for(model, global_pages=9).run(ids, 80).tokens.tolist()}
    case = case_for(model, global_pages=9)
    case.worker.scheduler.speculation = OracleSpeculation(
        case.cache, 8, replies, vocab=model.spec.vocab_size, spoil=1.0
    )
    step, wrong = case.runner.step, False

    def lossy(chunks: Sequence[Chunk], **options: Any) -> Any:
        nonlocal wrong
        before = [pool.copy() for pool in case.runner.kv_pools]
        result = step(chunks, **options)
        if wrong and not chunks[0].drafts:
            for pool, old in zip(case.runner.kv_pools, before, strict=True):
                pool[:] = old
        wrong = bool(chunks[0].drafts)
        return result

    monkeypatch.setattr(case.runner, "step", lossy)
    request = case.submit(ids, 80)
    case.drain()
    assert not case.is_exact(request, fresh) or request.tokens.tolist() != replies[0]


def test_a_reply_leaves_the_same_in_the_cache_wherever_its_end_lies_in_the_drafts(model: PackedModel) -> None:
    """The newest token is never computed, so a draft that was right at the very end is not kept either."""
    ids = np.random.default_rng(2).integers(0, model.spec.vocab_size, 50).tolist()
    for reply in range(1, 25):
        plain = case_for(model, global_pages=9)
        done = plain.run(ids, reply)
        case = case_for(model, global_pages=9)
        case.worker.scheduler.speculation = OracleSpeculation(
            case.cache, 8, {0: done.tokens.tolist()}, vocab=model.spec.vocab_size, seed=reply, spoil=0.2
        )
        drafted = case.run(ids, reply)
        assert drafted.tokens.tolist() == done.tokens.tolist()
        assert case.cache.stats() == plain.cache.stats()


# ---- with the engine: ends of every kind ----


def tokens_of(listener: Listener) -> tuple[int, ...]:
    return tuple(token for event in listener.events for token in event.token_ids)


def reply_of(
    engine: Engine, ids: Sequence[int], params: SamplingParams, *, choice: int = 0, oracle: Sequence[int] = ()
) -> tuple[str, tuple[int, ...], str | None, list[TokenLogprob]]:
    """Text, tokens, why it ended, and log-probabilities; with `oracle`, the whole reply of plain decoding, drafted from it."""
    replies: dict[int, Sequence[int]] = {engine._next_number: [*ids, *oracle]}
    engine._scheduler.speculation = (
        OracleSpeculation(
            engine.cache, 8, replies, vocab=engine.spec.vocab_size, seed=engine._next_number, spoil=0.3
        )
        if oracle
        else Speculation(engine.cache, 0)
    )
    listener = Listener()
    engine.submit(ids, params, listener, choice=choice)
    last = listener.last()
    assert engine.drain(WAIT_S)
    assert last.completion_tokens == len(tokens_of(listener))
    return (
        "".join(event.text for event in listener.events),
        tokens_of(listener),
        last.finish_reason,
        [logprob for event in listener.events for logprob in event.logprobs],
    )


GREEDY = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.2, top_p=0.95, top_k=50, seed=11, max_tokens=60, ignore_eos=True)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_every_end_comes_where_it_comes_without_drafts(tiny_gqa: PackedModel, params: SamplingParams) -> None:
    rng = np.random.default_rng(4)
    ids = rng.integers(3, tiny_gqa.spec.vocab_size, 40).tolist()
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1, context_tokens=90) as engine:
        text, tokens, *_ = reply_of(engine, ids, params)
        assert len(tokens) == 50, "the context ends it"
        assert reply_of(engine, ids, params, oracle=tokens) == (text, tokens, "length", [])
        for choice in (1, 2):
            other = reply_of(engine, ids, params, choice=choice)
            assert reply_of(engine, ids, params, choice=choice, oracle=other[1]) == other
            assert (other[1] == tokens) == (params.temperature == 0)
        ended_inside_drafts = 0
        for _ in range(12):
            at = int(rng.integers(1, len(tokens)))
            short = dataclasses.replace(params, max_tokens=at)
            assert reply_of(engine, ids, short, oracle=tokens) == reply_of(engine, ids, short)
            begin = int(rng.integers(len(text) - 3))
            stopping = dataclasses.replace(params, stop=(text[begin : begin + int(rng.integers(1, 4))], "zz"))
            plain = reply_of(engine, ids, stopping)
            assert plain[2] == "stop"
            assert reply_of(engine, ids, stopping, oracle=tokens) == plain
            ending = dataclasses.replace(params, stop_token_ids=(tokens[at],))
            plain, before = reply_of(engine, ids, ending), engine.stats()
            assert plain[1] == tokens[: tokens.index(tokens[at]) + 1]
            assert plain[2] == "stop"
            assert reply_of(engine, ids, ending, oracle=tokens) == plain
            after = engine.stats()
            ended_inside_drafts += (
                after.drafted_tokens_total - before.drafted_tokens_total
                > after.accepted_tokens_total - before.accepted_tokens_total
            )
        assert ended_inside_drafts > 0
        engine.check_integrity()


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": 3},
        {"presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
        {"logit_bias": ((40, 3.0), (41, -100.0)), "min_p": 0.05},
        {"min_tokens": 20, "stop_token_ids": tuple(range(3, 150))},
        {"grammar": Grammar("regex", "[a-z ]{20,40}")},
        {"grammar": Grammar("json_object"), "logprobs": 0},
        {"grammar": Grammar("regex", "[a-z]{3,9}"), "min_tokens": 6},
    ],
    ids=lambda change: "+".join(change),
)
def test_what_looks_back_at_the_reply_looks_at_the_drafts_too(
    tiny_gqa: PackedModel, change: dict[str, Any]
) -> None:
    """Penalties, the least length and grammars see each row's drafts as part of the reply."""
    ids = np.random.default_rng(8).integers(3, tiny_gqa.spec.vocab_size, 30).tolist()
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1) as engine:
        for base in (GREEDY, SEEDED):
            params = dataclasses.replace(base, ignore_eos="grammar" not in change, **change)
            plain = reply_of(engine, ids, params)
            assert len(plain[3]) == (len(plain[1]) if "logprobs" in change else 0)
            before = engine.stats().accepted_tokens_total
            for _ in range(3):
                assert reply_of(engine, ids, params, oracle=plain[1]) == plain
            drafts = "grammar" not in change or "min_tokens" not in change
            assert (engine.stats().accepted_tokens_total > before) == (drafts and len(plain[1]) > 4)
        assert_nothing_is_held(engine)


def test_a_draft_that_a_grammar_refuses_leaves_the_reply_where_it_is(tiny_gqa: PackedModel) -> None:
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1) as engine:
        a, b, z = (engine.tokenizer.encode(letter)[-1] for letter in "abz")
        reply = Grammars(engine.tokenizer, engine.spec.vocab_size).start(Grammar("regex", "ab*z"))
        mask = np.empty(mask_words(engine.spec.vocab_size), dtype=np.uint32)
        assert reply.allowed((a, b, a)) == 2
        assert not reply.fill(mask, (a, b, a))
        assert not mask.any()
        assert reply.fill(mask, (a, b))
        assert mask[z // 32] >> z % 32 & 1
        assert reply.fill(mask)
        assert [token for token in (a, b, z) if mask[token // 32] >> token % 32 & 1] == [a]
        assert reply.accept(a) is None


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_smollm2_repeats_its_prompt_in_fewer_steps_and_the_same_words(
    smollm2: PackedModel, params: SamplingParams
) -> None:
    prompt = "red, green, blue, white, black, red, green, blue, white, black, red, green, blue,"
    params = dataclasses.replace(params, max_tokens=24, top_p=0.3)
    with Engine(smollm2, kv_memory_bytes=64 << 20, threads=2, scheduler=OFF) as engine:
        expected = engine.generate(prompt, params)
        assert engine.stats().drafted_tokens_total == 0
        steps = engine.stats().steps_total
    with Engine(smollm2, kv_memory_bytes=64 << 20, threads=2) as engine:
        engine._scheduler.speculation.cost = FixedCost(0.2)
        reply = engine.generate(prompt, params)
        stats = engine.stats()
        again = engine.generate(prompt, params)  # from the cache
    assert reply == expected
    assert dataclasses.replace(again, cached_tokens=0) == expected
    assert stats.accepted_tokens_total >= 8
    assert stats.steps_total == steps - stats.accepted_tokens_total


def test_drafts_and_prompts_share_steps(tiny_gqa: PackedModel) -> None:
    rng = np.random.default_rng(6)
    prompts = [(rng.integers(3, 40, 4).tolist() * 20)[: int(rng.integers(20, 80))] for _ in range(10)]
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1, scheduler=OFF) as engine:
        alone = [engine.generate(ids, GREEDY).token_ids for ids in prompts]
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=2) as engine:
        engine._scheduler.speculation.cost = FixedCost(0.05)
        together: list[Completion] = engine.generate_batch(prompts, GREEDY)
        assert engine.stats().drafted_tokens_total > 0
        engine.check_integrity()
    assert [reply.token_ids for reply in together] == alone


@pytest.mark.parametrize("spare", [0, 1])
def test_a_draft_takes_no_page_that_somebody_needs(model: PackedModel, spare: int) -> None:
    """A stream near the end of its page drafts into the next only when that is free."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, model.spec.vocab_size, n).tolist() for n in (50, 60)]
    plain = case_for(model, global_pages=9)
    replies = {i: plain.run(ids, 8, seed=i).tokens.tolist() for i, ids in enumerate(prompts)}
    # Both reply within two pages each; the second one's prompt is promised its page before the first drafts.
    case = case_for(model, global_pages=2 + spare)
    case.worker.scheduler.speculation = OracleSpeculation(
        case.cache, 8, replies, vocab=model.spec.vocab_size, spoil=0.0
    )
    requests = [case.submit(ids, 8, seed=i) for i, ids in enumerate(prompts)]
    case.drain()
    assert [request.tokens.tolist() for request in requests] == list(replies.values())
    assert case.worker.scheduler.preemptions_total <= 1 - spare


class WholeDrafts(Speculation):
    """Drafts as much as it may, whatever it costs."""

    def choose(self, chunks: Sequence[Chunk], streams: Sequence[object], rows: int) -> list[Ids]:
        return [np.ones(stream.most, dtype=np.int32) for stream in streams]  # type: ignore[attr-defined]


def test_a_draft_ends_with_its_page_unless_the_next_is_promised_to_nobody(model: PackedModel) -> None:
    case = case_for(model, global_pages=2)
    request = case.submit(list(range(60)), 12, seed=0)
    while not request.completion_tokens:
        case.worker.step()
    assert (request.total_tokens, case.cache.available(GLOBAL)) == (61, 1)
    speculation = WholeDrafts(case.cache, 8)

    def drafted(promised: tuple[int, int]) -> int:
        [chunk] = speculation.with_drafts([Chunk(request, 1, samples=True)], 64, lambda: promised)
        return len(chunk.drafts)

    assert drafted((1, 0)) == PAGE_TOKENS - 61
    assert drafted((0, 0)) == 8
    assert case.cache.available(GLOBAL) == 0
