"""The one rule for why something was not in the cache."""

from __future__ import annotations

import pytest

from duologue.cache.kv_cache import CacheLookup
from duologue.cache.miss import MissCause, MissHints, cause_of


def lookup(matched: int, stored: int, *, diverges: bool = False, evicted: bool = False) -> CacheLookup:
    return CacheLookup(matched, stored, diverges, evicted)


@pytest.mark.parametrize(
    ("found", "hints", "cause"),
    [
        (lookup(0, 0), MissHints(), "new"),
        (lookup(50, 50), MissHints(40), "new"),
        (lookup(50, 50, diverges=True), MissHints(), "new"),
        (lookup(30, 30, diverges=True), MissHints(40), "new"),
        (lookup(50, 50, diverges=True), MissHints(40), "edited"),
        (lookup(50, 50, diverges=True), MissHints(40, in_template=True), "template"),
        (lookup(50, 50, diverges=True), MissHints(40, in_template=True, in_insert=True), "volatile"),
        (lookup(50, 50), MissHints(40, in_insert=True), "new"),
        (lookup(0, 0), MissHints(40, under_other_salt=True), "salt"),
        (lookup(50, 90), MissHints(40), "evicted"),
        (lookup(50, 50, diverges=True, evicted=True), MissHints(40, in_insert=True), "evicted"),
    ],
)
def test_each_miss_has_one_cause(found: CacheLookup, hints: MissHints, cause: str) -> None:
    assert cause_of(found, hints) is MissCause(cause)
