"""SentencePiece-style tokenization, spelled out.

A text begins as its characters. Of all neighbours whose joined text is a token, those of the best score are joined, of equal
scores the leftmost, until there are none. What is left is a token, or a single character without one: its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise


def encode(
    text: str, tokens: Mapping[str, int], scores: Sequence[float], byte_ids: Sequence[int]
) -> list[int]:
    """Ids of `text`. `tokens` are those that are found in text; `byte_ids` [256] is negative where a byte has no token.

    Joining is tried at every place in every round, so time grows with the square of the text.
    """
    parts = list(text)
    while True:
        joined = [tokens.get(left + right) for left, right in pairwise(parts)]
        places = [i for i, token in enumerate(joined) if token is not None]
        if not places:
            break
        best = max(places, key=lambda i: (scores[joined[i] or 0], -i))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    ids: list[int] = []
    for part in parts:
        if part in tokens:
            ids.append(tokens[part])
        else:
            ids += [byte_ids[byte] for byte in part.encode() if byte_ids[byte] >= 0]
    return ids
