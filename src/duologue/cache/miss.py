"""Why a prompt, or the rest of it, was not in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from duologue.cache.kv_cache import CacheLookup


class MissCause(str, Enum):
    """`NEW`: never stored. `EVICTED`: stored once, or its windows of local KV were. `EDITED`: a stored history goes on
    differently. `TEMPLATE`: so does text that the template wrote. `VOLATILE`: so does an insert that was not to stay. `SALT`:
    stored, but under another salt of the same tenant."""

    NEW = "new"
    EVICTED = "evicted"
    EDITED = "edited"
    TEMPLATE = "template"
    VOLATILE = "volatile"
    SALT = "salt"


@dataclass(frozen=True)
class MissHints:
    """What is known of a prompt, beside what the cache holds of it.

    A branch that parts from what is stored before `history_begin` (the end of the first user message) is another dialogue
    rather than an edited one; None: nothing is known of the prompt's turns. `in_template`: it parts in what the template wrote,
    `in_insert`: where an insert stood that was for one turn only. `under_other_salt`: the prompt is stored under another salt.
    """

    history_begin: int | None = None
    in_template: bool = False
    in_insert: bool = False
    under_other_salt: bool = False


NO_HINTS = MissHints()


def cause_of(lookup: CacheLookup, hints: MissHints) -> MissCause:
    """The cause for the tokens behind a match: the one rule for what is counted and for what is reported."""
    if lookup.evicted or lookup.stored_tokens > lookup.matched_tokens:
        return MissCause.EVICTED
    if hints.under_other_salt:
        return MissCause.SALT
    if lookup.diverges and hints.in_insert:
        return MissCause.VOLATILE
    if lookup.diverges and hints.in_template:
        return MissCause.TEMPLATE
    begin = hints.history_begin
    if lookup.diverges and begin is not None and lookup.stored_tokens >= begin:
        return MissCause.EDITED
    return MissCause.NEW
