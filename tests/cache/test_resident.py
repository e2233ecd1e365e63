"""Which pages of a dialogue at rest are kept, by hand; `tests/engine/test_kv_accounting.py` compares with the engine."""

from __future__ import annotations

import pytest

from duologue.cache.resident import DialogueShape, ResidentPages, resident_pages
from duologue.errors import InvalidRequestError


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
