"""The prefix cache, case by case: hashing, matching, forks, eviction, windows, owners."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duologue.kernels import _native
from tests.cache.simulated import SimulatedEngine

PRIME = 2**61 - 1
BASE = 0x0B2C4D6E8F1A3957
SPACE = b"space"


def ids(tokens: list[int]) -> npt.NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


def engine(
    pages: int = 100, *, window: int = 0, local_pages: int = 50, hash_bits: int = 61
) -> SimulatedEngine:
    cache = _native.PrefixCache(
        page_tokens=4,
        global_pages=pages,
        local_pages=local_pages if window else 0,
        window_tokens=window,
        hash_bits=hash_bits,
    )
    return SimulatedEngine(cache, 4, window)


def matched(case: SimulatedEngine, tokens: list[int], space: bytes = SPACE) -> int:
    return case.cache.lookup(space, ids(tokens)).matched_tokens


def stored(case: SimulatedEngine) -> int:
    return case.cache.stats()["stored_pages"][0]


# ---- hash ----


def test_hashes_are_the_same_in_every_process_and_version() -> None:
    """Golden values: a change here orphans every stored page outside this process."""
    assert _native.prefix_hash(0, ids([])) == 0
    assert _native.prefix_hash(0, ids([0])) == 1
    assert _native.prefix_hash(0, ids([1, 2, 3])) == 805621467502387088
    assert _native.prefix_hash(12345, ids(list(range(64)))) == 555016814593964704


@given(st.lists(st.integers(0, 2**31 - 1), max_size=70), st.integers(0, PRIME - 1), st.integers(0, 70))
def test_the_hash_is_the_polynomial_and_rolls(tokens: list[int], prefix: int, cut: int) -> None:
    expected = prefix
    for token in tokens:
        expected = (expected * BASE + token + 1) % PRIME
    assert _native.prefix_hash(prefix, ids(tokens)) == expected
    assert _native.prefix_hash(_native.prefix_hash(prefix, ids(tokens[:cut])), ids(tokens[cut:])) == expected


# ---- matching ----


def test_a_match_is_exact_to_the_token() -> None:
    case = engine()
    case.run(SPACE, list(range(10)))
    for common in range(10):
        assert matched(case, [*range(common), 99, 98]) == common
    assert matched(case, list(range(10))) == 10
    assert matched(case, list(range(20))) == 10
    assert matched(case, [], SPACE) == 0
    assert matched(case, list(range(10)), b"other") == 0


@pytest.mark.parametrize("hash_bits", [1, 2, 61])
def test_colliding_hashes_cost_time_and_nothing_else(hash_bits: int) -> None:
    case = engine(400, hash_bits=hash_bits)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 3, 40).tolist() for _ in range(30)]
    for prompt in prompts:
        case.run(SPACE, prompt)  # reads through SimulatedEngine, which knows each page's content
    for prompt in prompts:
        assert matched(case, prompt) == 40
        changed = [*prompt[:17], 7, *prompt[18:]]
        assert matched(case, changed) >= 17
        best = max(len(_common(changed, other)) for other in prompts)
        assert matched(case, changed) == best
    case.cache.check_integrity()


def _common(a: list[int], b: list[int]) -> list[int]:
    out = []
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        out.append(x)
    return out


def test_among_ten_thousand_children_the_longest_common_prefix_is_found() -> None:
    case = engine(20_000)
    persona = [1] * 8
    rng = np.random.default_rng(1)
    tails = np.unique(rng.integers(0, 30, (10_000, 3)), axis=0)
    for tail in tails.tolist():
        tokens = ids([*persona, *tail])
        opened = case.cache.open(SPACE, b"", tokens, 10, [], [], 0.0)
        assert case.cache.reserve(opened.sequence, 11)
        case.cache.close(opened.sequence, tokens, 11, True, 0.0, 0.0)
    for probe in rng.integers(0, 31, (200, 3)):
        best = np.cumprod(tails == probe, axis=1).sum(axis=1).max()
        assert matched(case, [*persona, *probe.tolist()]) == 8 + best


def test_what_follows_a_match_is_told() -> None:
    case = engine()
    case.run(SPACE, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    lookup = case.cache.lookup(SPACE, ids([1, 2, 3, 4, 5, 99]))
    assert (lookup.matched_tokens, lookup.stored_tokens, lookup.diverges, lookup.evicted) == (
        5,
        5,
        True,
        False,
    )
    assert not case.cache.lookup(SPACE, ids([*range(1, 10), 20])).diverges
    assert case.cache.stored_branch(SPACE, ids([1, 2, 3, 4, 5, 99]), 3) == [6, 7, 8]
    assert case.cache.stored_branch(SPACE, ids([1, 2, 3, 4, 5, 99]), 100) == [6, 7, 8, 9]
    assert case.cache.stored_branch(b"none", ids([1]), 9) == []


# ---- forks, sharing ----


def test_full_pages_are_shared_and_only_a_partly_matched_page_is_copied() -> None:
    case = engine()
    case.run(SPACE, list(range(14)))
    assert stored(case) == 4
    opened = case.cache.open(SPACE, b"", ids([*range(10), 50, 51, 52]), 12, [], [], 100.0)
    assert opened.cached_tokens == 10
    assert [kind for kind, _, _ in opened.copies] == [0]
    table = ids([0] * 3)
    case.cache.copy_table(opened.sequence, 0, table)
    assert case.cache.stats()["free_pages"][0] == 100 - 4 - 1
    case.cache.close(opened.sequence, ids([*range(10), 50, 51, 52]), 10, True, 0.0, 101.0)
    case.cache.check_integrity()
    assert stored(case) == 4  # nothing new was computed, so nothing new is stored


def test_a_dialogue_writes_on_in_its_own_last_page() -> None:
    case = engine()
    first = list(range(10))
    case.run(SPACE, first, [20, 21])
    running = case.open(SPACE, [*first, 20, 21, 30, 31])
    assert running.computed == 12
    case.close(running)
    opened = case.cache.open(SPACE, b"", ids([*range(9), 60, 61]), 10, [], [], 100.0)
    assert len(opened.copies) == 1
    case.cache.close(opened.sequence, ids([*range(9), 60, 61]), 9, False, 0.0, 101.0)
    case.run(SPACE, [*range(6)])
    opened = case.cache.open(SPACE, b"", ids([*range(12)]), 11, [], [], 102.0)
    assert (opened.cached_tokens, len(opened.copies)) == (10, 1)


def test_equal_pages_computed_at_the_same_time_become_one() -> None:
    case = engine()
    prompt = list(range(11))
    a, b = case.open(SPACE, prompt), case.open(SPACE, prompt)
    assert case.compute(a, 5)
    assert case.compute(b, 11)
    assert case.compute(a, 6)
    case.close(a)
    case.close(b)
    assert stored(case) == 3
    case.cache.check_integrity()


def test_pages_are_there_for_others_while_the_request_still_runs() -> None:
    case = engine()
    long = case.open(SPACE, list(range(30)))
    assert case.compute(long, 13)
    assert matched(case, list(range(30))) == 12
    short = case.open(SPACE, [*range(13), 77])
    assert short.computed == 12
    assert case.compute(long, 17)  # the prompt's end is stored with its partial page
    assert matched(case, list(range(30))) == 30
    case.close(short)
    case.close(long)


# ---- eviction ----


def test_the_least_recently_used_leaf_goes_first_and_its_parent_after_it() -> None:
    case = engine(6)
    case.run(SPACE, [1, 2, 3, 4, 5, 6, 7, 8])  # two pages
    case.run(SPACE, [1, 2, 3, 4, 15, 16, 17, 18])  # one more
    case.run(SPACE, [31, 32, 33, 34, 35])  # two more
    case.run(SPACE, [1, 2, 3, 4, 5, 6, 7, 8])  # the first branch is used again
    case.run(SPACE, [41, 42, 43, 44, 45])  # needs two pages, one is free
    assert matched(case, [1, 2, 3, 4, 15, 16, 17, 18]) == 4
    assert matched(case, [1, 2, 3, 4, 5, 6, 7, 8]) == 8
    lookup = case.cache.lookup(SPACE, ids([1, 2, 3, 4, 15, 16, 17, 18]))
    assert (lookup.evicted, lookup.matched_tokens) == (True, 4)
    assert case.cache.stats()["evicted_pages"][0] == 1


def test_retention_is_a_head_start_that_runs_out() -> None:
    case = engine(4)
    kept = case.open(SPACE, [1, 2, 3])
    assert case.compute(kept, 3)
    case.close(kept, retention_s=12.0)
    for i in range(5):
        case.run(SPACE, [10 + i, 1, 2])
    assert matched(case, [1, 2, 3]) == 3
    for i in range(10):
        case.run(SPACE, [30 + i, 1, 2])
    assert matched(case, [1, 2, 3]) == 0


def test_a_tenant_s_head_starts_are_limited_to_a_quarter_of_the_pages() -> None:
    case = engine(16)

    def keep(tokens: list[int], tenant: bytes, retention_s: float = 40.0) -> None:
        running = case.open(tenant, tokens, owner=tenant)
        assert case.compute(running, len(tokens))
        case.close(running, retention_s=retention_s, tenant=tenant)
        case.cache.check_integrity()

    def flood() -> None:
        for i in range(12):
            case.run(b"flood", [100 + i, 1, 2, 3, 4])

    for i in range(6):  # two pages each: two have room
        keep([10 + i, 1, 2, 3, 4], b"greedy")
    keep([10, 1, 2, 3, 4, 5], b"greedy")  # a later turn is not counted twice
    keep([50, 1, 2, 3, 4], b"other")
    flood()
    assert [matched(case, [10 + i, 1, 2, 3, 4], b"greedy") for i in range(6)] == [5, 5, 0, 0, 0, 0]
    assert matched(case, [50, 1, 2, 3, 4], b"other") == 5
    flood()  # by now all have run out
    assert matched(case, [11, 1, 2, 3, 4], b"greedy") == 0
    keep([70, 1, 2, 3, 4], b"greedy")
    flood()
    assert matched(case, [70, 1, 2, 3, 4], b"greedy") == 5
    # What was forgotten leaves room for others.
    case.cache.forget(b"greedy", 1000)
    for first in (80, 90):
        keep([first, 1, 2, 3, 4], b"greedy")
    case.run(b"flood", [100, 1, 2, 3, 4])
    assert matched(case, [80, 1, 2, 3, 4], b"greedy") == matched(case, [90, 1, 2, 3, 4], b"greedy") == 5


def test_pages_in_use_are_never_evicted_and_reserve_says_so() -> None:
    case = engine(4)
    running = case.open(SPACE, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert case.compute(running, 9)
    other = case.open(SPACE, list(range(20, 30)))
    assert not case.compute(other, 10)
    assert case.compute(other, 4)
    assert case.cache.available(0) == 0
    case.close(other, keep=False)
    case.close(running)
    assert case.cache.available(0) == 4
    assert matched(case, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 9


def test_a_million_one_token_dialogues_stay_within_the_budget() -> None:
    cache = _native.PrefixCache(page_tokens=64, global_pages=500)
    for i in range(20_000):  # the other 98 % add nothing but time
        tokens = ids([i, 1])
        opened = cache.open(SPACE, b"", tokens, 1, [], [], float(i))
        assert cache.reserve(opened.sequence, 2)
        cache.commit(opened.sequence, tokens, 2, True, float(i))
        cache.close(opened.sequence, tokens, 2, True, 0.0, float(i))
    cache.check_integrity()
    assert cache.stats()["stored_pages"][0] == 500
    assert cache.lookup(SPACE, ids([19_999, 1])).matched_tokens == 2
    assert cache.lookup(SPACE, ids([0, 1])).matched_tokens == 0


def test_empty_namespaces_leave_nothing_behind() -> None:
    case = engine(8)
    for i in range(200):
        case.run(b"%d" % i, [1, 2, 3, 4, 5])
    assert case.cache.stats()["roots"] <= 8
    case.cache.check_integrity()


# ---- owners ----


def test_forgetting_a_key_removes_what_nobody_else_reaches() -> None:
    case = engine()
    persona = [1, 2, 3, 4]
    case.run(SPACE, [*persona, 10, 11, 12, 13, 14], owner=b"a")
    case.run(SPACE, [*persona, 20, 21], owner=b"b")
    before = stored(case)
    assert case.cache.forget(b"a", 1000) == (2, 5)
    assert stored(case) == before - 2
    assert matched(case, [*persona, 10, 11]) == 4
    assert matched(case, [*persona, 20, 21]) == 6
    assert case.cache.forget(b"a", 1000) == (0, 0)
    assert case.cache.forget(b"b", 1000) == (2, 6)
    assert (stored(case), case.cache.stats()["roots"]) == (0, 0)
    case.cache.check_integrity()


def test_forgetting_a_key_takes_its_tokens_out_of_a_page_where_another_key_ends() -> None:
    case = engine()
    case.run(SPACE, [1, 2], owner=b"a")
    case.run(SPACE, [1, 2, 3], owner=b"b")  # goes on in the page of a
    assert case.cache.forget(b"b", 1000) == (0, 1)
    assert matched(case, [1, 2, 3, 4]) == 2
    assert case.cache.stored_branch(SPACE, np.array([1, 2], dtype=np.int32), 10) == []
    case.cache.check_integrity()
    # The same where the page became full and was continued, and where what remains begins another page.
    case.run(SPACE, [1, 2, 3, 4, 5], owner=b"b")
    case.run(SPACE, [1, 2, 8], owner=b"c")
    assert case.cache.forget(b"b", 1000) == (2, 3)
    assert matched(case, [1, 2, 3, 4, 5]) == 2
    case.cache.check_integrity()
    assert case.cache.forget(b"c", 1000) == (0, 1)
    assert matched(case, [1, 2, 8]) == 2
    assert case.cache.forget(b"a", 1000) == (1, 2)
    assert case.cache.stats()["stored_tokens"] == 0
    case.cache.check_integrity()


def test_what_two_keys_stored_stays_until_both_are_forgotten() -> None:
    case = engine()
    for owner in (b"a", b"b"):
        case.run(SPACE, [1, 2, 3, 4, 5], owner=owner)
    case.cache.forget(b"a", 1000)
    assert matched(case, [1, 2, 3, 4, 5]) == 5
    case.cache.forget(b"b", 1000)
    assert matched(case, [1, 2, 3, 4, 5]) == 0


def test_an_earlier_turn_is_forgotten_with_its_key_also_after_eviction_of_the_later_one() -> None:
    case = engine(8)
    case.run(SPACE, [1, 2, 3, 4, 5, 6], owner=b"a")
    case.run(SPACE, [1, 2, 3, 4, 5, 6, 7, 8, 9], owner=b"a")
    for i in range(3):
        case.run(SPACE, [50 + i] * 7, owner=b"b")  # takes the free pages and then the end of a
    assert 0 < matched(case, [1, 2, 3, 4, 5, 6, 7, 8, 9]) < 9
    case.cache.forget(b"a", 1000)
    assert matched(case, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 0
    case.cache.check_integrity()


def test_a_running_request_of_a_forgotten_key_leaves_nothing() -> None:
    case = engine()
    running = case.open(SPACE, list(range(10)), owner=b"a")
    assert case.compute(running, 10)
    case.cache.forget(b"a", 1000)
    running.tokens += [50, 51]
    assert case.compute(running, 2)
    case.close(running)
    assert (stored(case), matched(case, list(range(10)))) == (0, 0)
    case.cache.check_integrity()


@pytest.mark.parametrize("window", [0, 8])
def test_what_runs_under_a_forgotten_key_cannot_be_matched_from_then_on(window: int) -> None:
    case = engine(window=window)
    persona, prompt = list(range(8)), list(range(30))
    case.run(SPACE, persona, owner=b"b")
    choices = [case.open(SPACE, prompt, owner=b"a") for _ in range(2)]  # of one prompt
    for running in choices:
        assert case.compute(running, 30)
    assert matched(case, [*prompt, 99]) == 30
    case.cache.forget(b"a", 1000)
    case.cache.check_integrity()
    assert matched(case, [*prompt, 99]) <= len(persona)
    for i, running in enumerate(choices):
        running.tokens += [60 + i] * 20
        assert case.compute(running, 20)
        case.cache.check_integrity()
        assert case.cache.lookup(SPACE, ids(running.tokens)).stored_tokens == len(persona)
    # Nor does it disturb those that come meanwhile.
    assert case.run(SPACE, [*prompt, 99], owner=b"c") <= len(persona)
    assert [case.close(running) for running in choices] == [False, False]
    case.cache.check_integrity()
    assert matched(case, [*prompt, 99]) == 31
    case.cache.forget(b"c", 1000)
    assert case.cache.lookup(SPACE, ids([*persona, 9])).stored_tokens == len(persona)
    case.cache.forget(b"b", 1000)
    assert stored(case) == 0


def test_a_forgotten_request_that_wrote_behind_another_s_end_costs_that_one_the_page() -> None:
    case = engine()
    case.run(SPACE, [1, 2, 3, 4, 5, 6], owner=b"b")
    running = case.open(SPACE, [1, 2, 3, 4, 5, 6, 7], owner=b"a")  # in the page of b
    case.cache.forget(b"a", 1000)
    assert case.compute(running, 1)
    case.cache.check_integrity()
    assert case.cache.lookup(SPACE, ids([1, 2, 3, 4, 5, 6, 7])).stored_tokens == 4
    case.close(running)
    assert (stored(case), matched(case, [1, 2, 3, 4, 5])) == (1, 4)
    case.cache.check_integrity()


def test_who_sends_the_same_beside_a_forgotten_request_has_pages_of_its_own() -> None:
    case = engine()
    gone, stays = (case.open(SPACE, [1, 2, 3, 4, 5], owner=owner) for owner in (b"a", b"b"))
    assert case.compute(gone, 5)
    case.cache.forget(b"a", 1000)
    assert case.compute(stays, 5)
    case.cache.check_integrity()
    for running in (gone, stays):
        running.tokens += [6, 7, 8, 9]
        assert case.compute(running, 4)
        case.cache.check_integrity()
    assert case.table(gone, 0).tolist() != case.table(stays, 0).tolist()
    case.close(stays)
    assert matched(case, gone.tokens) == 9
    case.close(gone)
    assert (stored(case), matched(case, stays.tokens)) == (3, 9)
    case.cache.check_integrity()


def test_what_is_not_to_be_kept_is_out_of_reach_from_the_start() -> None:
    case = engine()
    case.run(SPACE, [1, 2, 3, 4, 5, 6])
    running = case.open(SPACE, [1, 2, 3, 4, 5, 6, 7, 8, 9], keep=False)
    assert running.computed == 6
    assert case.compute(running, 3)
    assert matched(case, running.tokens) == 6
    case.cache.check_integrity()
    assert not case.close(running)
    assert (stored(case), matched(case, running.tokens)) == (2, 6)


def test_a_forgotten_key_was_never_evicted() -> None:
    case = engine(6)
    prompt = list(range(8))

    def evicted(space: bytes = SPACE) -> bool:
        return case.cache.lookup(space, ids(prompt)).evicted

    for forget in (lambda: case.cache.forget(b"a", 1000), lambda: case.cache.forget_space(SPACE, 1000)):
        case.run(SPACE, prompt, owner=b"a")
        case.run(b"other", prompt, owner=b"b")
        case.run(b"third", [50] * 24, owner=b"c")  # takes all pages
        assert evicted()
        case.cache.forget(b"c", 1000)
        assert evicted()
        forget()
        assert not evicted()
        assert evicted(b"other")
        case.cache.forget(b"b", 1000)
        case.cache.check_integrity()


def test_forgetting_a_namespace_spares_the_others() -> None:
    case = engine()
    case.run(b"x", list(range(9)), owner=b"a")
    case.run(b"y", list(range(9)), owner=b"a")
    assert case.cache.forget_space(b"x", 1000) == (3, 9)
    assert matched(case, list(range(9)), b"x") == 0
    assert matched(case, list(range(9)), b"y") == 9
    case.cache.check_integrity()


# ---- windows ----


def test_local_pages_outside_every_kept_window_are_freed_at_once() -> None:
    case = engine(window=8)
    running = case.open(SPACE, list(range(100)))
    most = 0
    while running.computed < 90:
        assert case.compute(running, 4)
        total, free = case.cache.stats()["total_pages"][1], case.cache.stats()["free_pages"][1]
        most = max(most, total - free)
    # A window of 8 touches at most 3 pages of 4, one more is kept; the sparse windows at 32 and 64 keep 2 each.
    assert most <= 4 + 2 * 3
    case.close(running, keep=False)


def test_a_return_after_the_tail_window_was_evicted_steps_back_to_one_that_is_there() -> None:
    case = engine(200, window=8, local_pages=16)
    dialogue = list(range(70))
    case.run(SPACE, dialogue, turns=(60,), shared=(20,))
    assert matched(case, dialogue) == 70
    for i in range(12):
        case.run(SPACE, [100 + i] * 20)
    lookup = case.cache.lookup(SPACE, ids(dialogue))
    assert lookup.stored_tokens == 70  # global KV is all there
    assert lookup.matched_tokens < 70
    assert case.run(SPACE, [*dialogue, 99]) == lookup.matched_tokens
    assert matched(case, [*dialogue, 99]) == 71


def test_turns_keep_the_windows_of_the_last_one_only() -> None:
    case = engine(500, window=8, local_pages=200)
    tokens = list(range(30))
    checkpoints = []
    for turn in range(12):
        begin = len(tokens)
        tokens = [*tokens, *(100 * turn + i for i in range(11))]
        assert case.run(SPACE, tokens, turns=(begin,)) == (begin if turn else 0)
        checkpoints.append(case.cache.stats()["checkpoints"])
    # Two or three of the turn, and sparse ones at 32, 64 and 128.
    assert checkpoints[-1] <= 3 + 3
    # The last user message may be edited, the last reply made again.
    assert matched(case, [*tokens[:-11], 7]) == len(tokens) - 11


def test_the_window_behind_a_persona_stays_for_the_next_dialogue() -> None:
    case = engine(500, window=8, local_pages=100)
    persona = list(range(22))
    for dialogue in range(5):
        tokens = [*persona]
        for turn in range(6):
            begin = len(tokens)
            tokens = [*tokens, *(1000 * (dialogue + 1) + 50 * turn + i for i in range(9))]
            cached = case.run(SPACE, tokens, turns=(begin,), shared=(22,))
            assert cached == (begin if turn or dialogue else 0)


def test_a_forgotten_namespace_is_out_of_reach_at_once_and_goes_slice_by_slice() -> None:
    case = engine()
    for i in range(5):
        case.run(SPACE, [1, 2, 3, 4, 10 + i, 20], owner=b"a")
    running = case.open(SPACE, [1, 2, 3, 4, 50, 51, 52, 53, 54])
    assert case.compute(running, 9)
    assert case.cache.forget_space(SPACE, 2)[0] == 2
    assert matched(case, [1, 2, 3, 4, 10, 20]) == 0
    case.cache.check_integrity()
    case.run(SPACE, [1, 2, 3, 4, 60, 61], owner=b"b")  # a new tree of the same name
    assert matched(case, [1, 2, 3, 4, 10, 20]) == 4
    case.close(running)
    case.cache.check_integrity()
    pages, _ = case.cache.forget_space(SPACE, 1000)
    assert pages > 0
    assert (stored(case), case.cache.stats()["roots"]) == (0, 0)
    assert case.cache.available(0) == 100
