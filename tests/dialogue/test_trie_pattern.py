from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.dialogue.trie_pattern import any_of

TEXTS = st.text("ab<.|\n é", min_size=1, max_size=5)


@settings(deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=12), st.text("ab<.|\n é", max_size=20))
def test_the_longest_text_at_each_place_is_found(texts: list[str], text: str) -> None:
    pattern = re.compile(any_of(texts))
    for at in range(len(text)):
        here = [t for t in texts if text.startswith(t, at)]
        match = pattern.match(text, at)
        assert (match[0] if match else None) == max(here, key=len, default=None)


def test_thousands_of_texts_and_long_runs() -> None:
    numbered = [f"<unused{i}>" for i in range(6000)]
    pattern = re.compile(any_of(numbered))
    assert pattern.findall("".join(numbered)) == numbered
    runs = ["\n" * n for n in range(1, 400)]  # deeper than groups may nest
    assert [len(found) for found in re.compile(any_of(runs)).findall("\n" * 1000)] == [399, 399, 202]
