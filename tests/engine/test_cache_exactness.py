"""hit == miss, bit for bit: random dialogues over a small cache give the logits that an engine without a cache gives."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from duologue.cache.scope import CacheScope
from duologue.engine.request import PromptMarks, Request, RequestState
from duologue.models.packed_model import PackedModel
from tests.engine.cached_case import GQA, MQA_WINDOWS, TWO_WINDOWS, CachedCase, FreshRunner, packed

# The whole proof takes minutes: DUOLOGUE_TEST_SCHEDULES=3000.
SCHEDULES = int(os.environ.get("DUOLOGUE_TEST_SCHEDULES", "60"))
VOCAB = GQA.vocab_size
SPECS = {"gqa": GQA, "mqa_windows": MQA_WINDOWS, "two_windows": TWO_WINDOWS}
_models: dict[str, tuple[PackedModel, FreshRunner]] = {}


def model_of(kind: str) -> tuple[PackedModel, FreshRunner]:
    if kind not in _models:
        model = packed(SPECS[kind])
        _models[kind] = (model, FreshRunner(model))
    return _models[kind]


class Dialogues(RuleBasedStateMachine):
    """Turns, edits, branches, regenerations, truncations, aborts, evictions and forgetting, with neighbours at all times."""

    kind = "gqa"
    histories = Bundle("histories")
    requests = Bundle("requests")

    @initialize(
        pages=st.integers(9, 24), local_pages=st.integers(4, 16), batch=st.sampled_from([17, 64, 96, 200])
    )
    def start(self, pages: int, local_pages: int, batch: int) -> None:
        model, self.fresh = model_of(self.kind)
        # At the least what the engine grants: room for one window and a step.
        if window := max(layer.window for layer in model.spec.layers):
            local_pages = max(local_pages, -(-(window + batch) // 64) + 2)
        self.case = CachedCase(model, global_pages=pages, local_pages=local_pages, max_batch_tokens=batch)
        self.checked: set[int] = set()

    @rule(target=histories, length=st.integers(1, 200), seed=st.integers(0, 3))
    def begin(self, length: int, seed: int) -> list[int]:
        return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()

    @rule(
        target=histories,
        request=requests,
        message=st.integers(1, 90),
        cut=st.sampled_from([0, 0, 1, 5, 40, 130]),
    )
    def next_turn(self, request: Request, message: int, cut: int) -> list[int]:
        """Goes on behind a reply, or, having cut into it or what was before, on another branch."""
        ids = request.tokens.tolist()
        ids = ids[: max(1, len(ids) - cut)]
        return ids + np.random.default_rng(message).integers(0, VOCAB, message).tolist()

    @rule(target=histories, request=requests, keep=st.integers(1, 60))
    def truncate(self, request: Request, keep: int) -> list[int]:
        ids = request.tokens.tolist()
        return ids[:10] + ids[-keep:]

    @rule(
        target=requests,
        ids=histories,
        reply=st.integers(1, 70),
        key=st.sampled_from([None, "a", "b"]),
        salt=st.sampled_from([b"", b"", b"s"]),
        turn=st.integers(0, 80),
        shared=st.booleans(),
    )
    def submit(
        self, ids: list[int], reply: int, key: str | None, salt: bytes, turn: int, shared: bool
    ) -> Request:
        ids = ids[-(500 - reply) :]
        marks = PromptMarks(turns=(max(1, len(ids) - turn),), shared=(min(30, len(ids)),) if shared else ())
        return self.case.submit(ids, reply, scope=CacheScope(key=key, salt=salt), marks=marks, seed=len(ids))

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.case.step()

    @rule(request=requests)
    def abort(self, request: Request) -> None:
        request.abort_requested = True

    @rule(key=st.sampled_from(["a", "b"]))
    def forget(self, key: str) -> None:
        self.case.cache.forget("", key)

    @invariant()
    def finished_requests_are_exact(self) -> None:
        if not hasattr(self, "case"):
            return
        for request in self.case.finished:
            assert request.state is RequestState.FINISHED
            self.case.assert_exact(request, self.fresh)
        self.case.finished.clear()

    def teardown(self) -> None:
        if hasattr(self, "case"):
            self.case.drain()
            self.finished_requests_are_exact()
            assert self.case.cache.available(0) == self.case.geometry.global_pages
            assert self.case.cache.available(1) == self.case.geometry.local_pages


class WindowDialogues(Dialogues):
    """The same with one layer in two on a window, and shared KV."""

    kind = "mqa_windows"


class TwoWindowsDialogues(Dialogues):
    """Windows of 40 and of 128 beside global layers: the widest decides which pages stay, the others see less of them."""

    kind = "two_windows"


_settings = settings(
    max_examples=SCHEDULES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDialogues = pytest.mark.timeout(3000)(Dialogues.TestCase)
TestDialogues.settings = _settings
TestWindowDialogues = pytest.mark.timeout(3000)(WindowDialogues.TestCase)
TestWindowDialogues.settings = _settings
TestTwoWindowsDialogues = pytest.mark.timeout(3000)(TwoWindowsDialogues.TestCase)
TestTwoWindowsDialogues.settings = settings(_settings, max_examples=max(1, SCHEDULES // 3))


@pytest.mark.parametrize("kind", SPECS)
def test_negative_control_one_corrupt_byte_of_stored_kv_is_noticed(kind: str) -> None:
    model, fresh = model_of(kind)
    case = CachedCase(model, global_pages=12, local_pages=12)
    ids = np.random.default_rng(9).integers(0, VOCAB, 150).tolist()
    case.assert_exact(case.run(ids), fresh)
    again = case.run(ids)
    assert again.cached_tokens == 149
    case.assert_exact(again, fresh)
    # The exponent of one value's scale in the first page.
    head_dim = model.spec.layers[0].head_dim
    case.runner.kv_pools[0][:, 64 * (2 * head_dim + 4) + 4 * 9 + 3] ^= 0x02
    third = case.run(ids)
    assert third.cached_tokens == 149
    assert not case.is_exact(third, fresh)
