"""The earlier place whose last tokens have the most in common with the end of a sequence, spelled out."""

from __future__ import annotations

from collections.abc import Sequence


def longest_suffix_match(tokens: Sequence[int], most: int) -> tuple[int, int]:
    """(end, length) as `kernels.suffix_match`. Time grows with the length of the sequence times `most`."""
    best = (0, 0)
    for end in range(len(tokens) - 1, 1, -1):
        length = 0
        while length < min(most, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= 2 and length > best[1]:
            best = (end, length)
    return best
