"""The scheduler's policy, without a model: what it plans, whom it preempts, and that everything ends."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.cache.geometry import KvGeometry
from duologue.cache.kv_cache import GLOBAL, KvCache
from duologue.engine.chunk import Chunk
from duologue.engine.request import Request, RequestState
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.scheduler import Scheduler, SchedulerConfig
from duologue.kernels import PAGE_TOKENS


def make_cache(pages: int) -> KvCache:
    """Page numbers without KV."""
    return KvCache(KvGeometry(PAGE_TOKENS, pages))


def make_request(number: int, prompt: int, reply: int, *, common: int = 0) -> Request:
    """Its first `common` tokens are those of all others, the rest nobody else's."""
    return Request(
        number,
        [i if i < common else 1000 * (number + 1) + i for i in range(prompt)],
        SamplingParams(),
        seed=0,
        max_total_tokens=prompt + reply,
        on_event=lambda event: None,
        detokenizer=None,
        stop_matcher=None,
    )


def apply(scheduler: Scheduler, chunks: list[Chunk]) -> None:
    """What the engine does with a computed step."""
    for chunk in chunks:
        scheduler.computed(chunk)
        if chunk.samples:
            assert chunk.request.computed == chunk.request.total_tokens
            chunk.request.append(7)
            if chunk.request.total_tokens == chunk.request.max_total_tokens:
                scheduler.finish(chunk.request)


def test_short_prompts_share_a_step() -> None:
    scheduler = Scheduler(SchedulerConfig(max_batch_tokens=100, max_num_seqs=10), make_cache(50))
    for i in range(4):
        scheduler.add(make_request(i, 20, 5))
    chunks = scheduler.plan()
    assert [(chunk.request.number, chunk.count, chunk.samples) for chunk in chunks] == [
        (0, 20, True),
        (1, 20, True),
        (2, 20, True),
    ]


def test_a_short_prompt_does_not_wait_for_a_long_one_that_came_first() -> None:
    scheduler = Scheduler(SchedulerConfig(max_batch_tokens=100, max_num_seqs=10), make_cache(50))
    scheduler.add(make_request(0, 130, 5))
    scheduler.add(make_request(1, 20, 5))
    steps = []
    for _ in range(2):
        chunks = scheduler.plan()
        steps.append([(chunk.request.number, chunk.count, chunk.samples) for chunk in chunks])
        apply(scheduler, chunks)
    # The short one is served first; the long one gets the rest, and the end of it is short itself.
    assert steps == [[(1, 20, True), (0, 80, False)], [(1, 1, True), (0, 50, True)]]


def test_a_long_prompt_gets_its_share_whatever_short_ones_come() -> None:
    config = SchedulerConfig(max_batch_tokens=512, max_num_seqs=32, prefill_tokens_while_decoding=100)
    scheduler = Scheduler(config, make_cache(200))
    scheduler.add(make_request(0, 10, 1000))
    apply(scheduler, scheduler.plan())
    scheduler.add(make_request(1, 600, 1))
    for number in range(2, 16):
        scheduler.add(make_request(number, 60, 1))
        chunks = scheduler.plan()
        counts = {chunk.request.number: chunk.count for chunk in chunks}
        assert counts[number] == 60
        assert counts[1] == 40
        apply(scheduler, chunks)
    assert scheduler.running[0].number == 0
    assert not scheduler.waiting


def test_prefill_is_bounded_while_streams_decode() -> None:
    config = SchedulerConfig(max_batch_tokens=512, max_num_seqs=8, prefill_tokens_while_decoding=32)
    scheduler = Scheduler(config, make_cache(100))
    scheduler.add(make_request(0, 10, 50))
    apply(scheduler, scheduler.plan())
    scheduler.add(make_request(1, 300, 5))
    chunks = scheduler.plan()
    assert [(chunk.request.number, chunk.count) for chunk in chunks] == [(0, 1), (1, 32)]


def test_a_newcomer_waits_until_its_pages_are_free_and_is_not_overtaken() -> None:
    scheduler = Scheduler(SchedulerConfig(), make_cache(4))
    scheduler.add(make_request(0, 2 * PAGE_TOKENS, 4))
    scheduler.add(make_request(1, 2 * PAGE_TOKENS, 4))
    scheduler.add(make_request(2, 1, 4))
    assert [chunk.request.number for chunk in scheduler.plan()] == [0]
    assert [request.number for request in scheduler.waiting] == [1, 2]


def test_the_youngest_is_preempted_and_comes_back_with_its_tokens() -> None:
    scheduler = Scheduler(SchedulerConfig(), make_cache(4))
    old = make_request(0, PAGE_TOKENS - 1, 3 * PAGE_TOKENS)
    young = make_request(1, PAGE_TOKENS - 1, 3 * PAGE_TOKENS)
    scheduler.add(old)
    scheduler.add(young)
    while not scheduler.preemptions_total:
        apply(scheduler, scheduler.plan())
    assert young.state is RequestState.WAITING
    assert young.computed == 0
    assert young.sequence is None
    kept = young.total_tokens
    assert kept > PAGE_TOKENS
    scheduler.finish(old)
    chunks = scheduler.plan()
    # What it had computed may still be there, or not; all else is computed again.
    assert [chunk.request.number for chunk in chunks] == [1]
    assert young.computed + chunks[0].count == kept


def test_requests_that_arrive_together_compute_their_common_prefix_once() -> None:
    scheduler = Scheduler(SchedulerConfig(max_batch_tokens=128), make_cache(50))
    for i in range(3):
        scheduler.add(make_request(i, 300, 2, common=290))
    scheduler.add(make_request(3, 20, 2))
    computed = 0
    for _ in range(20):
        chunks = scheduler.plan()
        computed += sum(chunk.count for chunk in chunks if not chunk.samples or chunk.count > 1)
        apply(scheduler, chunks)
    assert not scheduler.has_work
    # The first one's 300, and of the two others what lies behind the common tokens; the last page is copied, not computed.
    assert computed == 300 + 10 + 10 + 20


def test_one_that_shares_nothing_passes_those_that_wait_for_a_prefix() -> None:
    config = SchedulerConfig(max_batch_tokens=320, shared_prefill_tokens=320)
    scheduler = Scheduler(config, make_cache(50))
    scheduler.add(make_request(0, 300, 2, common=290))
    scheduler.add(make_request(1, 300, 2, common=290))
    scheduler.add(make_request(2, 20, 2))
    assert [chunk.request.number for chunk in scheduler.plan()] == [0, 2]


@given(
    common=st.sampled_from([0, 50, 150]),
    requests=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 200)), min_size=1, max_size=12),
    pages=st.integers(8, 20),
    budget=st.integers(12, 256),
    seqs=st.integers(1, 12),
    aborts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 11)), max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_every_request_ends_and_no_page_is_lost(
    common: int,
    requests: list[tuple[int, int]],
    pages: int,
    budget: int,
    seqs: int,
    aborts: list[tuple[int, int]],
) -> None:
    config = SchedulerConfig(
        max_batch_tokens=budget, max_num_seqs=min(seqs, budget), prefill_tokens_while_decoding=64
    )
    scheduler = Scheduler(config, make_cache(pages))
    made = [make_request(i, prompt, reply, common=common) for i, (prompt, reply) in enumerate(requests)]
    for request in made:
        assert request.max_total_tokens <= 8 * PAGE_TOKENS  # every one fits alone, as the engine guarantees
        scheduler.add(request)
    oldest_preempted = False
    for step in range(20_000):
        for at, number in aborts:
            if at == step and number < len(made):
                scheduler.finish(made[number])
        if not scheduler.has_work:
            break
        oldest = scheduler.running[0] if scheduler.running else None
        chunks = scheduler.plan()
        assert chunks, "there is work but the step is empty"
        assert len({chunk.request.number for chunk in chunks}) == len(chunks)
        assert sum(chunk.count for chunk in chunks) <= budget
        assert [request.number for request in scheduler.running] == sorted(
            r.number for r in scheduler.running
        )
        for chunk in chunks:
            assert chunk.request.sequence is not None
            assert chunk.request.sequence.page_count * PAGE_TOKENS >= chunk.request.computed + chunk.count
        oldest_preempted |= oldest is not None and oldest.state is RequestState.WAITING
        scheduler.check_integrity()
        apply(scheduler, chunks)
    assert not scheduler.has_work
    assert not oldest_preempted
    assert scheduler.cache.available(GLOBAL) == pages
    aborted = {number for _, number in aborts}
    for request in made:
        assert request.number in aborted or request.total_tokens == request.max_total_tokens


@pytest.mark.parametrize(
    "field",
    ["max_batch_tokens", "max_num_seqs", "prefill_tokens_while_decoding", "shared_prefill_tokens"],
)
def test_config_names_a_field_that_is_out_of_range(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**{field: 0})


@pytest.mark.parametrize("window", [64, 100, 128])
def test_a_cached_prompt_is_admitted_when_the_local_pool_holds_one_window_only(window: int) -> None:
    step = 2 * PAGE_TOKENS
    local_pages = -(-(window + step) // PAGE_TOKENS) + 2  # the least that `KvGeometry.for_budget` grants
    cache = KvCache(KvGeometry(PAGE_TOKENS, 100, 1, local_pages, 1, window))
    scheduler = Scheduler(SchedulerConfig(max_batch_tokens=step, max_num_seqs=4), cache)
    for number, prompt in enumerate(range(10, 12 * PAGE_TOKENS, 37)):
        for request in (
            make_request(number, prompt, 1, common=prompt),
            make_request(number, prompt + 3 * step, 2, common=prompt),
        ):
            scheduler.add(request)
            while scheduler.has_work:
                chunks = scheduler.plan()
                assert chunks, f"nothing can run, though request {request.number} waits alone"
                apply(scheduler, chunks)
            scheduler.check_integrity()


@pytest.mark.parametrize(("streams", "steps"), [(1, 0), (3, 1), (8, 2)])
def test_streams_decode_between_steps_with_prompts(streams: int, steps: int) -> None:
    config = SchedulerConfig(max_batch_tokens=64, max_num_seqs=64, prefill_tokens_while_decoding=20)
    scheduler = Scheduler(config, make_cache(100))
    for number in range(streams):
        scheduler.add(make_request(number, 3, 1000))
    for _ in range(10):
        apply(scheduler, scheduler.plan())
    scheduler.add(make_request(streams, 400, 5))  # twenty tokens a step: not done before the last one here
    with_prompt = []
    for _ in range(12):
        chunks = scheduler.plan()
        assert sum(chunk.count == 1 for chunk in chunks) == streams
        with_prompt.append(len(chunks) > streams)
        apply(scheduler, chunks)
    assert with_prompt == [i % (steps + 1) == 0 for i in range(12)]
