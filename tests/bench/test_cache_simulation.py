"""The simulated caches: against a search through everything seen, against each other, and the real index among them."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

from duologue.bench.cache_simulation import (
    Foresight,
    IndexCache,
    PageTree,
    Recency,
    compare,
    fitting_factors,
    replay,
    reusable_tokens,
)
from duologue.bench.cache_trace import Access, make_trace, working_set_pages
from duologue.bench.dialogue_workload import Length, WorkloadSpec
from duologue.cli.bench import bench
from duologue.kernels import PAGE_TOKENS

PLAIN = WorkloadSpec(dialogues=12, turns=4)
VARIED = WorkloadSpec(
    dialogues=12,
    turns=5,
    persona_words=70,
    message_words=Length(30, 0.7),
    reply_tokens=Length(20, 0.7),
    regenerate_rate=0.4,
    edit_rate=0.4,
)


def longest_common(trace: list[Access]) -> list[int]:
    """By comparing with every earlier request."""
    found = []
    for i, access in enumerate(trace):
        best = 0
        for earlier in trace[:i]:
            count = min(len(access.prompt) - 1, len(earlier.computed))
            differs = np.flatnonzero(access.prompt[:count] != earlier.computed[:count])
            best = max(best, int(differs[0]) if len(differs) else count)
        found.append(best)
    return found


def request(*tokens: int, reply: int = 1) -> Access:
    return Access(0, 1, np.array(tokens, np.int32), np.full(reply, 9, np.int32))


def test_later_prompts_hold_earlier_ones_and_their_replies() -> None:
    trace = make_trace(PLAIN)
    assert [access.dialogue for access in trace] == [*range(12)] * 4
    for access, later in zip(trace, trace[12:], strict=False):
        seen = np.concatenate([access.prompt, access.reply])
        assert (later.prompt[: len(seen)] == seen).all()
    assert [len(access.reply) for access in trace] == [32] * 48


def test_everything_processed_is_found_without_a_limit() -> None:
    for spec in (PLAIN, VARIED):
        trace = make_trace(spec)
        expected = longest_common(trace)
        assert reusable_tokens(trace) == expected
        index = IndexCache(10_000)
        assert [index.access(access) for access in trace] == expected


def test_a_budget_of_the_working_set_suffices() -> None:
    (row,) = compare(make_trace(PLAIN), [1])
    assert row.pages == working_set_pages(make_trace(PLAIN), PAGE_TOKENS)
    assert row.index.of_reusable == row.recency.of_reusable == row.optimum.of_reusable == 1


@pytest.mark.parametrize("spec", [PLAIN, VARIED])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_beats_the_optimum(spec: WorkloadSpec, seed: int) -> None:
    rows = compare(make_trace(WorkloadSpec(**{**spec.__dict__, "seed": seed})), [1.5, 2, 3])
    for row in rows:
        assert row.index.cached_tokens <= row.optimum.cached_tokens
        assert row.recency.cached_tokens <= row.optimum.cached_tokens
        assert row.optimum.cached_tokens <= row.optimum.reusable_tokens
        # The real index is a least-recently-used tree, too; ties within one request may fall otherwise.
        assert row.index.by_token == pytest.approx(row.recency.by_token, abs=0.05)
    assert rows[0].optimum.by_token > rows[-1].optimum.by_token


def brute_force(trace: list[Access], pages: int, page_tokens: int) -> int:
    """Most tokens that any choice of victims can have cached, for prompts of at most one page behind the root."""
    best = {frozenset[bytes](): 0}
    for access in trace:
        page = access.computed.tobytes()
        assert len(page) <= 4 * page_tokens
        following: dict[frozenset[bytes], int] = {}
        for stored, hits in best.items():
            cached = hits + max((common(access.prompt[:-1].tobytes(), other) for other in stored), default=0)
            after = stored | {page}
            kept = [after] if len(after) <= pages else [after - {other} for other in stored - {page}]
            for state in kept:
                following[state] = max(following.get(state, 0), cached)
        best = following
    return max(best.values())


def common(a: bytes, b: bytes) -> int:
    pairs = zip(np.frombuffer(a, np.int32), np.frombuffer(b, np.int32), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def test_belady_s_rule_is_the_best_choice_of_victims() -> None:
    # Five different prompts of one page each, none beginning as another does.
    for seed in range(40):
        order = np.random.default_rng(seed).integers(1, 6, 14)
        trace = [request(*[int(kind)] * 4, reply=1) for kind in order]
        paths: dict[tuple[int, bytes], int] = {}
        reads: list[list[int]] = [[] for _ in trace]
        unlimited = PageTree(
            1000, 4, Recency(), paths, lambda path, now, reads=reads: reads[now].append(path)
        )  # type: ignore[misc]
        for access in trace:
            unlimited.access(access)
        for pages in (2, 3):
            optimum = PageTree(pages, 4, Foresight(reads), paths)
            assert sum(map(optimum.access, trace)) == brute_force(trace, pages, 4)


def test_one_request_must_fit() -> None:
    trace = [request(*range(9))]
    with pytest.raises(ValueError, match="does not fit"):
        PageTree(2, 4, Recency()).access(trace[0])
    assert replay(trace, PageTree(3, 4, Recency()), [0]).cached_tokens == 0
    with pytest.raises(ValueError, match="does not fit"):
        compare(make_trace(WorkloadSpec(dialogues=1, turns=1)), [10])


def test_the_command_prints_every_budget() -> None:
    done = CliRunner().invoke(bench, ["cache", "--dialogues=12", "--turns=3"])
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["1/1", "1/2", "1/4"]
    done = CliRunner().invoke(bench, ["cache", "--dialogues=12", "--turns=3", "--overcommit=2", "--json"])
    (row,) = json.loads(done.stdout)
    assert 0 < row["index"]["by_token"] <= row["optimum"]["by_token"] < 1
    done = CliRunner().invoke(bench, ["cache", "--dialogues=1", "--turns=1", "--overcommit=50"])
    assert done.exit_code == 2
    assert "does not fit" in done.output


@pytest.mark.parametrize("persona", ["shared", "own", "none"])
@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("dialogues", [1, 2, 4])
def test_the_default_budgets_are_those_that_every_request_fits_into(
    dialogues: int, turns: int, persona: str
) -> None:
    trace = make_trace(WorkloadSpec(dialogues=dialogues, turns=turns, persona=persona))  # type: ignore[arg-type]
    factors = fitting_factors(trace)
    assert factors[0] == 1
    assert [row.factor for row in compare(trace, factors)] == list(factors)


def test_budgets_of_many_dialogues_are_not_left_out() -> None:
    assert fitting_factors(make_trace(PLAIN)) == (1, 2, 4)


def test_one_short_dialogue_is_simulated_by_default() -> None:
    result = CliRunner().invoke(bench, ["cache", "--dialogues", "1", "--turns", "1", "--json"])
    assert result.exit_code == 0, result.output
    assert [row["overcommit"] for row in json.loads(result.output)] == [1]
