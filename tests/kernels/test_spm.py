"""SentencePiece-style tokenization: equal to the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.kernels.reference import spm as reference
from duologue.kernels.spm import SpmVocabulary

ALPHABET = "abé日"
WORDS = st.text(ALPHABET, min_size=1, max_size=6)
SCORES = st.sampled_from([0.0, -0.0, -1.0, -2.0, float("-inf")]) | st.floats(-3, 3, width=32)
NO_BYTES = np.full(256, -1, dtype=np.int32)


def vocabulary(
    tokens: list[str], scores: list[float], hidden: list[int], byte_ids: np.ndarray = NO_BYTES
) -> SpmVocabulary:
    encoded = [token.encode() for token in tokens]
    ends = np.cumsum([len(token) for token in encoded], dtype=np.int64)
    return SpmVocabulary(
        b"".join(encoded),
        ends,
        np.array(scores, dtype=np.float32),
        hidden=np.array(hidden, dtype=np.int32),
        byte_ids=byte_ids,
    )


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(WORDS, st.tuples(SCORES, st.booleans()), max_size=16),
    st.lists(st.text(ALPHABET + "x\U0001f600", max_size=24), max_size=6),
    st.integers(0, 255),
)
def test_agrees_with_the_reference(
    words: dict[str, tuple[float, bool]], texts: list[str], no_token: int
) -> None:
    tokens = list(words)
    scores = [score for score, _ in words.values()]
    hidden = [i for i, (_, is_hidden) in enumerate(words.values()) if is_hidden]
    byte_ids = np.arange(256, dtype=np.int32) + len(tokens)
    byte_ids[no_token] = -1
    # Tokens of their own for the bytes, which are not found in text.
    names = [f"byte {byte}" for byte in range(256)]
    ours = vocabulary(
        [*tokens, *names],
        [*scores, *[0.0] * 256],
        [*hidden, *range(len(tokens), len(tokens) + 256)],
        byte_ids,
    )
    found = {token: i for i, token in enumerate(tokens) if i not in hidden}
    for text in texts:
        expected = reference.encode(text, found, [*scores, *[0.0] * 256], byte_ids.tolist())
        assert ours.encode(text) == expected


def test_of_equal_scores_the_leftmost_goes_first() -> None:
    ours = vocabulary(["a", "b", "ab", "ba", "aba"], [0, 0, 1, 1, 0], [])
    assert ours.encode("aba") == [4]
    assert ours.encode("bab") == [3, 1]
    assert vocabulary(["a", "b", "ab", "ba"], [0, 0, 1, 2], []).encode("aba") == [0, 3]


def test_a_long_run_takes_little_time() -> None:
    ours = vocabulary(["a", "aa", "aaaa"], [0, 1, 2], [])
    assert ours.encode("a" * 1_000_003) == [2] * 250_000 + [1, 0]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"ends": [2, 1]}, "ascend"),
        ({"ends": [1, 9]}, "ascend"),
        ({"ends": [-1, 2]}, "ascend"),
        ({"ends": [1]}, r"\[n\]"),
        ({"scores": [0.0, float("nan")]}, "not a number"),
        ({"hidden": [2]}, "hidden"),
        ({"hidden": [-1]}, "hidden"),
        ({"byte_ids": [2] * 256}, "byte"),
        ({"byte_ids": [0] * 255}, "256"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(changes: dict[str, list[float]], match: str) -> None:
    arrays = {"ends": [1, 2], "scores": [0.0, 0.0], "hidden": [], "byte_ids": [-1] * 256, **changes}
    with pytest.raises(ValueError, match=match):
        SpmVocabulary(
            b"ab",
            np.array(arrays["ends"], dtype=np.int64),
            np.array(arrays["scores"], dtype=np.float32),
            hidden=np.array(arrays["hidden"], dtype=np.int32),
            byte_ids=np.array(arrays["byte_ids"], dtype=np.int32),
        )
