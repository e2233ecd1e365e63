"""The compiled search finds what the plain one finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from duologue.kernels.reference import suffix_match as reference
from duologue.kernels.suffix_match import longest_suffix_match


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 12))
def test_equal_to_the_reference(tokens: list[int], most: int) -> None:
    ids = np.array(tokens, dtype=np.int32)
    assert longest_suffix_match(ids, most) == reference.longest_suffix_match(tokens, most)


def test_the_longest_wins_and_of_equal_ones_the_latest() -> None:
    ids = np.array([1, 2, 3, 9, 2, 3, 8, 2, 3, 7, 1, 2, 3], dtype=np.int32)
    assert longest_suffix_match(ids, 8) == (3, 3)
    assert longest_suffix_match(ids, 2) == (9, 2)
    assert longest_suffix_match(ids[1:10], 8) == (0, 0)
