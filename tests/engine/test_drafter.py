"""What is drafted, how sure of it, and whether it is worth its rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from duologue.cache.geometry import KvGeometry
from duologue.cache.kv_cache import KvCache
from duologue.dialogue.grammar import Grammar
from duologue.engine.chunk import Chunk
from duologue.engine.drafter import Drafter, may_draft
from duologue.engine.request import Request
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.scheduler import SchedulerConfig
from duologue.engine.speculation import MOST_DRAFT_TOKENS, Speculation
from duologue.engine.step_cost import StepCost
from duologue.kernels import PAGE_TOKENS
from tests.engine.test_speculation import FixedCost

_PHRASE = list(range(10, 30))


def ids(*parts: Sequence[int]) -> np.ndarray:
    return np.array([token for part in parts for token in part], dtype=np.int32)


def test_a_draft_is_what_followed_the_longest_latest_copy() -> None:
    tokens = ids([1, 5, 6, 90], [2, 5, 6, 91], [3, 5, 6, 92], [7, 2, 5, 6])
    draft, chances = Drafter().propose(tokens, 3)
    assert draft.tolist() == [91, 3, 5]
    assert chances == sorted(chances, reverse=True)
    assert 0 < chances[-1] < chances[0] < 1
    assert Drafter().propose(ids([4], tokens[:-3].tolist(), [5, 6]), 1)[0].tolist() == [92]


def test_without_a_copy_there_is_no_draft() -> None:
    for tokens in ([], [1], [1, 2], [1, 2, 3, 1, 3], list(range(100))):
        draft, chances = Drafter().propose(ids(tokens), 8)
        assert draft.tolist() == chances == []


def test_a_copy_that_runs_into_the_end_goes_round() -> None:
    assert Drafter().propose(ids([9, 1, 2, 3, 1, 2, 3]), 8)[0].tolist() == [1, 2, 3, 1, 2, 3, 1, 2]
    assert Drafter().propose(ids([4] * 5), 4)[0].tolist() == [4] * 4


def test_a_longer_copy_is_trusted_more() -> None:
    first = [Drafter().propose(ids([1], _PHRASE, [2], _PHRASE[:length]), 1)[1][0] for length in range(2, 16)]
    assert first == sorted(first)
    assert first[0] < 0.3
    assert first[-1] > 0.7


def test_a_request_learns_how_far_its_drafts_are_right_and_forgets_misses() -> None:
    drafter = Drafter()
    tokens = ids([1], _PHRASE, [2], _PHRASE[:4])

    def chance() -> float:
        return drafter.propose(tokens, 8)[1][0]

    before = chance()
    for _ in range(20):
        drafter.propose(tokens, 8)
        drafter.learn(8, 8)
    assert chance() > 0.9
    for _ in range(80):
        drafter.propose(tokens, 8)
        drafter.learn(8, 0)
    assert chance() < 0.1
    drafter.propose(tokens, 8)
    lowest = chance()
    for _ in range(200):
        drafter.learn(0, 0)
    assert lowest < chance() == pytest.approx(before, abs=0.05)


def test_what_follows_a_wrong_draft_is_no_miss() -> None:
    """Of eight drafts whose second is wrong two are judged: one hit, one miss."""
    once, twice = Drafter(), Drafter()
    tokens = ids([1], _PHRASE, [2], _PHRASE[:4])
    for drafter, drafted in ((once, 2), (twice, 8)):
        drafter.propose(tokens, 8)
        drafter.learn(drafted, 1)
    assert once.propose(tokens, 8)[1] == twice.propose(tokens, 8)[1]


def test_a_row_must_follow_from_the_drafts_before_it() -> None:
    json_object = Grammar("json_object")
    assert may_draft(SamplingParams(presence_penalty=0.5, logprobs=2, min_tokens=3))
    assert may_draft(SamplingParams(grammar=json_object))
    assert not may_draft(SamplingParams(grammar=json_object, min_tokens=3))


def test_the_cost_of_a_row_is_learned_in_spite_of_late_steps() -> None:
    cost, rng = StepCost(), np.random.default_rng(0)
    assert not cost.known
    for _ in range(300):
        rows = int(rng.integers(1, 6))
        late = 20.0 if rng.random() < 0.02 else 1.0
        cost.observe(rows, late * (5e-3 + 1e-3 * rows) * rng.uniform(0.95, 1.05))
    assert cost.row_s == pytest.approx(1e-3, rel=0.3)
    assert cost.step_s(1) == pytest.approx(6e-3, rel=0.15)
    for _ in range(200):  # the machine, or the dialogues, have changed
        rows = int(rng.integers(1, 6))
        cost.observe(rows, 20e-3 + 5e-3 * rows)
    assert cost.row_s == pytest.approx(5e-3, rel=0.2)


def test_steps_of_one_size_say_how_long_they_take_and_leave_the_slope_assumed() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.observe(1, 8e-3)
    assert cost.step_s(1) == pytest.approx(8e-3)
    assert 0.1 < cost.row_s / 8e-3 < 0.3


def stream(number: int, tokens: Sequence[int], *, max_total_tokens: int = 1000) -> Chunk:
    request = Request(
        number,
        list(tokens),
        SamplingParams(),
        seed=0,
        max_total_tokens=max_total_tokens,
        on_event=lambda event: None,
        detokenizer=None,
        stop_matcher=None,
    )
    request.computed = request.total_tokens - 1
    request.sealed = True
    return Chunk(request, 1, samples=True)


def drafts_of(chunks: list[Chunk], row_s: float, *, most: int = 8, step_tokens: int = 512) -> list[int]:
    """How many tokens each chunk is given, where a step of one row takes 1 and each more `row_s`."""
    cache = KvCache(KvGeometry(PAGE_TOKENS, 100))
    speculation = Speculation(cache, most)
    speculation.cost = FixedCost(row_s)
    for chunk in chunks:
        request = chunk.request
        assert request.drafter is not None
        for _ in range(20):  # it has been right all along
            if len(request.drafter.propose(request.tokens, 1)[0]):
                request.drafter.learn(1, 1)
        request.sequence = cache.open(request.tokens, request.scope)
        assert request.sequence.reserve(request.total_tokens + 32)
    planned = speculation.with_drafts(chunks, step_tokens, lambda: (0, 0))
    assert [chunk.request for chunk in planned] == [chunk.request for chunk in chunks]
    return [len(chunk.drafts) for chunk in planned]


COPYING = [1, *_PHRASE, 2, *_PHRASE[:12]]
FREE = list(range(100, 140))


def test_a_sure_request_drafts_as_much_as_its_rows_are_worth() -> None:
    assert drafts_of([stream(0, COPYING)], 0.05) == [8]
    assert 1 <= drafts_of([stream(0, COPYING)], 0.4)[0] < 8
    assert drafts_of([stream(0, COPYING)], 0.99) == [0]
    assert drafts_of([stream(0, FREE)], 0.05) == [0]
    assert drafts_of([stream(0, COPYING)], 0.05, most=3) == [3]
    assert drafts_of([stream(0, COPYING)], 0.05, most=0) == [0]


def test_drafts_end_before_the_reply_and_within_the_step() -> None:
    assert drafts_of([stream(0, COPYING, max_total_tokens=len(COPYING) + 4)], 0.01) == [3]
    assert drafts_of([stream(0, COPYING, max_total_tokens=len(COPYING) + 1)], 0.01) == [0]
    assert drafts_of([stream(0, COPYING)], 0.01, step_tokens=6) == [5]
    assert sum(drafts_of([stream(i, COPYING) for i in range(20)], 0.001)) == MOST_DRAFT_TOKENS


def test_nothing_is_drafted_from_the_end_of_a_reply_on() -> None:
    chunk = stream(0, COPYING)
    chunk.request.end_ids = frozenset({_PHRASE[15]})
    assert drafts_of([chunk], 0.01) == [3]


def test_neighbours_that_gain_nothing_are_not_slowed_down() -> None:
    alone = drafts_of([stream(0, COPYING), stream(1, COPYING)], 0.2)
    beside = drafts_of([stream(0, COPYING), stream(1, FREE)], 0.2)
    assert min(alone) >= 2
    assert beside == [1, 0]


def test_many_streams_that_keep_the_machine_busy_draft_nothing() -> None:
    assert drafts_of([stream(i, COPYING) for i in range(32)], 0.5) == [0] * 32


def test_a_prompt_in_the_step_is_a_neighbour() -> None:
    prompt = stream(1, FREE)
    prompt.request.computed = 0
    prompt.request.sealed = False
    chunks = [stream(0, COPYING), Chunk(prompt.request, 40, samples=True)]
    assert drafts_of(chunks, 0.2)[1] == 0


@pytest.mark.parametrize("tokens", [-1, MOST_DRAFT_TOKENS + 1])
def test_the_limit_is_checked(tokens: int) -> None:
    with pytest.raises(ValueError, match="speculation_tokens"):
        SchedulerConfig(speculation_tokens=tokens)
