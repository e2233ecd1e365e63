"""Which pages of a dialogue at rest are kept: by hand, and against the index itself over dialogues as long as real ones.

`tests/engine/test_kv_accounting.py` compares bytes with the engine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.cache.geometry import KvGeometry
from duologue.cache.kv_cache import KvCache
from duologue.cache.resident import DialogueShape, ResidentPages, resident_pages
from duologue.cache.scope import DEFAULT_SCOPE
from duologue.errors import InvalidRequestError

PAGE_TOKENS = 64


def test_without_windows_whole_pages_are_all_there_is() -> None:
    assert resident_pages(DialogueShape(129), 0, 64) == ResidentPages(3)


def test_windows_that_overlap_are_counted_once() -> None:
    # Ends at 2000, 1950 and 1900: [976, 2000) is pages 15 to 31, and the earliest, [876, 1900), begins on page 13.
    shape = DialogueShape(2000, message_tokens=50, reply_tokens=50, closing_tokens=0)
    assert shape.boundaries == (1900, 1950, 2000)
    assert resident_pages(shape, 1024, 64) == ResidentPages(32, 32 - 13, 0)


def test_windows_that_lie_apart_are_counted_each() -> None:
    # Ends at 2048, 1408 and 768, of 128 positions each.
    shape = DialogueShape(2048, message_tokens=640, reply_tokens=640, closing_tokens=0)
    assert resident_pages(shape, 128, 64).local_pages == 3 * 2


def test_a_page_of_a_window_is_kept_for_one_position() -> None:
    shape = DialogueShape(129, message_tokens=0, reply_tokens=0, closing_tokens=0)
    assert resident_pages(shape, 128, 64).local_pages == 3  # [1, 129)


def test_sparse_checkpoints_stand_at_doubled_distances() -> None:
    assert DialogueShape(4095).sparse_checkpoints(1024) == ()
    assert DialogueShape(20_000).sparse_checkpoints(1024) == (4096, 8192, 16384)
    shape = DialogueShape(4096, message_tokens=20, reply_tokens=20)
    assert resident_pages(shape, 1024, 64).sparse_pages == 0  # the end's window is the checkpoint's
    assert resident_pages(DialogueShape(8000), 1024, 64).sparse_pages == 16


def test_a_persona_keeps_its_window() -> None:
    apart = resident_pages(DialogueShape(4000, persona_tokens=640), 128, 64)
    assert apart.local_pages == resident_pages(DialogueShape(4000), 128, 64).local_pages + 2


def test_a_dialogue_shorter_than_its_last_turn_has_no_more_than_its_pages() -> None:
    assert resident_pages(DialogueShape(10), 1024, 64) == ResidentPages(1, 1)
    assert DialogueShape(60).boundaries == (2, 7, 60)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tokens": 0}, "at least 1 token"),
        ({"tokens": 9, "reply_tokens": -1}, "reply_tokens -1"),
        ({"tokens": 9, "message_tokens": 3}, "closing_tokens 5"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(sizes: dict[str, int], says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        DialogueShape(**sizes)


@dataclass(frozen=True)
class Turn:
    """Tokens of a message, of which the last `closing` are the template's, and of the reply, of which the last is not computed."""

    message: int
    closing: int
    reply: int


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    message = draw(st.integers(1, 1500))
    return Turn(message, draw(st.integers(0, min(9, message - 1))), draw(st.integers(2, 1500)))


def play(cache: KvCache, persona: int, dialogue: list[Turn], chunk: int) -> DialogueShape:
    """As the engine plays it: prompts in chunks, replies token by token, pages committed as they fill."""
    total = persona + sum(turn.message + turn.reply for turn in dialogue)
    ids = np.random.default_rng(total).integers(0, 1000, total).astype(np.int32)
    begin = persona
    for turn in dialogue:
        prompt_end = begin + turn.message
        end = prompt_end + turn.reply - 1
        sequence = cache.open(
            ids[:prompt_end],
            DEFAULT_SCOPE,
            turns=(begin, prompt_end - turn.closing),
            shared=(persona,) if persona else (),
        )
        computed = sequence.cached_tokens
        while computed < end:
            step = min(prompt_end, computed + chunk) if computed < prompt_end else computed + 1
            assert sequence.reserve(step)
            if step == prompt_end or step // PAGE_TOKENS > computed // PAGE_TOKENS:
                sequence.commit(ids[:step], step, seal=step == prompt_end)
            computed = step
        sequence.close(ids[:end], end)
        begin = end + 1
    last = dialogue[-1]
    return DialogueShape(end, last.message, last.reply - 1, last.closing, persona)


@settings(max_examples=80, deadline=None)
@given(
    window=st.sampled_from([64, 128, 512, 1024, 4096]),
    persona=st.sampled_from([0, 0, 30, 64, 900, 2000]),
    dialogue=st.lists(turns(), min_size=1, max_size=8),
    chunk=st.sampled_from([33, 128, 512]),
)
def test_the_index_keeps_what_is_counted(window: int, persona: int, dialogue: list[Turn], chunk: int) -> None:
    cache = KvCache(KvGeometry(PAGE_TOKENS, 500, 1, 500, 1, window))
    shape = play(cache, persona, dialogue, chunk)
    counted = resident_pages(shape, window, PAGE_TOKENS)
    assert cache.stats().stored_pages == (
        counted.global_pages,
        counted.local_pages + counted.sparse_pages,
    )
    cache.check_integrity()
