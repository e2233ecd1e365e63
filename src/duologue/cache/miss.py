"""Why a prompt, or the rest of it, was not in the cache."""

from __future__ import annotations

from enum import Enum

from duologue.cache.kv_cache import CacheLookup


class MissCause(str, Enum):
    """`NEW`: never stored. `EVICTED`: stored once, or its windows of local KV were. `EDITED`: a stored history goes on
    differently. `TEMPLATE`: so does text that the template wrote. `SALT`: stored, but under another salt of the same tenant."""

    NEW = "new"
    EVICTED = "evicted"
    EDITED = "edited"
    TEMPLATE = "template"
    SALT = "salt"


def cause_of(
    lookup: CacheLookup,
    history_begin: int | None,
    *,
    in_template: bool = False,
    under_other_salt: bool = False,
) -> MissCause:
    """The cause for the tokens behind a match.

    A branch that parts from what is stored before `history_begin` (the end of the first user message) is another dialogue
    rather than an edited one; None: nothing is known of the prompt's turns.
    """
    if lookup.evicted or lookup.stored_tokens > lookup.matched_tokens:
        return MissCause.EVICTED
    if under_other_salt:
        return MissCause.SALT
    if lookup.diverges and in_template:
        return MissCause.TEMPLATE
    if lookup.diverges and history_begin is not None and lookup.stored_tokens >= history_begin:
        return MissCause.EDITED
    return MissCause.NEW
