"""What users of other systems report of windowed models (docs/scenarios.md, 1 to 9), on a model with windows and shared KV.

Every dialogue comes back after all others had their turns; what had been computed must be there, and every logit must be that of a
run without a cache.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from duologue.cache.geometry import KvGeometry
from duologue.engine.request import PromptMarks, Request
from duologue.kernels import PAGE_TOKENS
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec
from duologue.models.spec import Mlp
from tests.engine.cached_case import CachedCase, FreshRunner, packed

WINDOW = 128
PERSONA = list(range(5, 45))
_BATCH = 128


def _own_architecture() -> PackedModel:
    """Multi-query, two local layers to a global one, KV shared by neighbours, squared ReLU and clamps."""
    spec = random_spec(
        layers=6, heads=4, kv_heads=1, head_dim=16, vocab=64, hidden=64,
        windows=(WINDOW, WINDOW, 0, WINDOW, WINDOW, 0), kv_owners=(None, 0, None, None, 3, 2),
    )  # fmt: skip
    layers = tuple(
        dataclasses.replace(layer, mlp=Mlp.RELU2, qkv_clamp=4.0, mlp_clamp=4.0) for layer in spec.layers
    )
    return packed(dataclasses.replace(spec, layers=layers))


MODEL = _own_architecture()
FRESH = FreshRunner(MODEL, 2048)


class Dialogue:
    def __init__(self, case: CachedCase, number: int, messages: int = 8) -> None:
        self.case = case
        self.random = np.random.default_rng(number)
        self.ids = [*PERSONA]
        self.processed = 0
        self.user_begin = len(self.ids)
        for _ in range(messages):
            self.say()
        self.reply: list[int] = []

    def message(self, tokens: int = 45) -> list[int]:
        return self.random.integers(0, 64, tokens).tolist()

    def say(self) -> None:
        self.user_begin = len(self.ids)
        self.ids = [*self.ids, *self.message()]

    def answer(self, *, reply_tokens: int = 9) -> Request:
        """The prompt as it stands; the reply is kept aside until `turn`."""
        marks = PromptMarks(turns=(self.user_begin, len(self.ids)), shared=(len(PERSONA),))
        request = self.case.run(self.ids, reply_tokens, marks=marks)
        self.reply = request.tokens[len(self.ids) : request.total_tokens].tolist()
        self.processed = len(self.ids) + len(self.reply) - 1
        return request

    def turn(self) -> Request:
        self.ids = [*self.ids, *self.reply]
        self.say()
        return self.answer()


def make_case(dialogues: int, occupancy: float, *, tokens: int = 560) -> CachedCase:
    """A pool that so many dialogues of so many tokens fill to the given share, cut as the engine cuts a budget."""
    native = MODEL.native()
    # Two windows of a turn overlap but for a page or two; a sparse one comes with the fourth window.
    local = 2 * (WINDOW // PAGE_TOKENS + 2)
    dialogue_bytes = -(-tokens // PAGE_TOKENS) * native.global_page_bytes + local * native.local_page_bytes
    geometry = KvGeometry.for_budget(
        int(dialogues * dialogue_bytes / occupancy),
        page_tokens=PAGE_TOKENS,
        global_page_bytes=native.global_page_bytes,
        local_page_bytes=native.local_page_bytes,
        window_tokens=WINDOW,
        step_tokens=_BATCH,
    )
    return CachedCase(
        MODEL,
        global_pages=geometry.global_pages,
        local_pages=geometry.local_pages,
        max_batch_tokens=_BATCH,
    )


@pytest.mark.parametrize("occupancy", [0.25, 0.5, 0.9])
def test_reuse_does_not_collapse_when_sessions_take_turns(occupancy: float) -> None:
    case = make_case(12, occupancy)
    dialogues = [Dialogue(case, number) for number in range(12)]
    for dialogue in dialogues:
        dialogue.answer()
    for _ in range(3):
        for dialogue in dialogues:
            processed = dialogue.processed
            request = dialogue.turn()
            assert request.cached_tokens == processed
    for dialogue in dialogues[::5]:
        case.assert_exact(dialogue.turn(), FRESH)


def test_every_way_back_into_a_dialogue_reuses_what_it_can() -> None:
    case = make_case(10, 0.8)
    dialogues = [Dialogue(case, number) for number in range(10)]
    for dialogue in dialogues:
        dialogue.answer()
    for round_number in range(2):
        for dialogue in dialogues:
            dialogue.turn()
        for dialogue in dialogues:
            again = dialogue.answer()  # the same reply again
            assert again.cached_tokens == len(dialogue.ids) - 1
            case.assert_exact(again, FRESH)
        for dialogue in dialogues:
            kept = dialogue.ids[: dialogue.user_begin]
            dialogue.ids = [*kept, *dialogue.message(30 + round_number)]  # the last user message edited
            edited = dialogue.answer()
            assert edited.cached_tokens is not None
            # Random messages may begin alike.
            assert edited.cached_tokens >= len(kept)
            case.assert_exact(edited, FRESH)


def test_a_branch_in_the_middle_starts_from_a_sparse_window() -> None:
    case = make_case(2, 0.3, tokens=1400)
    dialogue = Dialogue(case, 3, messages=24)  # 1,120 tokens: sparse windows end at 512 and 1,024
    dialogue.answer()
    branch = [*dialogue.ids[:700], *dialogue.message()]
    request = case.run(branch, 5, marks=PromptMarks(turns=(700,)))
    assert request.cached_tokens == 512
    case.assert_exact(request, FRESH)
    # The first branch is still whole.
    processed = dialogue.processed
    assert dialogue.turn().cached_tokens == processed


def test_sparse_windows_are_evicted_before_those_of_turns() -> None:
    case = make_case(8, 1.0, tokens=600)
    dialogues = [
        Dialogue(case, number, messages=11) for number in range(6)
    ]  # each with a sparse window at 512
    for dialogue in dialogues:
        dialogue.answer()
    # More dialogues than there is room for with sparse windows.
    while case.cache.stats().evicted_pages[1] < 2:
        dialogues.append(Dialogue(case, len(dialogues), messages=11))
        dialogues[-1].answer()
        assert len(dialogues) < 40
    for dialogue in dialogues:
        assert case.cache.lookup(np.array(dialogue.ids, dtype=np.int32), b"").matched_tokens == len(
            dialogue.ids
        )


def test_a_dialogue_whose_windows_were_evicted_is_exact_and_warm_again_after_one_turn() -> None:
    case = make_case(3, 1.0)
    dialogues = [Dialogue(case, number) for number in range(9)]
    for dialogue in dialogues:
        dialogue.answer()
    first = dialogues[0]
    processed = first.processed
    request = first.turn()
    assert request.cached_tokens is not None
    assert request.cached_tokens < processed  # nine dialogues do not fit where three do
    case.assert_exact(request, FRESH)
    processed = first.processed
    request = first.turn()
    assert request.cached_tokens == processed
    case.assert_exact(request, FRESH)


def test_a_cut_history_is_computed_anew_and_never_shifted() -> None:
    case = make_case(4, 0.5)
    dialogue = Dialogue(case, 1)
    dialogue.answer()
    cut = [*PERSONA, *dialogue.ids[250:]]
    request = case.run(cut, 5, marks=PromptMarks(turns=(len(cut) - 40,), shared=(len(PERSONA),)))
    assert request.cached_tokens == len(PERSONA)
    case.assert_exact(request, FRESH)


def test_negative_control_a_window_page_that_is_overwritten_is_noticed() -> None:
    case = make_case(4, 0.5)
    dialogue = Dialogue(case, 2)
    case.assert_exact(dialogue.answer(), FRESH)
    pool = case.runner.kv_pools[1]
    pool[:, pool.shape[1] // 2] ^= 0x55  # one byte of every local page
    assert not case.is_exact(dialogue.turn(), FRESH)
