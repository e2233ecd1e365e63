"""Volatile inserts: a note, a date, a piece of lore that a front end wants near the end of the prompt now.

A front end that puts such text at a fixed depth moves it down with every turn, and everything behind its old
place is computed again. Here it sends its current inserts beside the messages, and they are placed:

- `freeze` bakes an insert into the history, right before the user message that it came with. It stays there on
  later turns, though the client never sends it again, so prompts keep growing at their end only.
- `tail` puts it right after the last user message, for this turn only. The next turn computes the previous reply
  again, which now stands behind other text: the price of text that must not stay.

What was frozen is remembered by a digest of the client's messages up to and including that user message, per
salt and `prompt_cache_key`. An edited history has other digests from the edit on, so its inserts are gone from
there; so are inserts that the bounded store had to drop. Both are clean misses: the text is absent, as the
client's own messages say. The key keeps apart dialogues with equal messages (most begin alike), whose inserts
must not get into each other's prompts; so freezing needs one.

A user message that is sent again (regenerate, a tool's result, a continued reply) takes the inserts of the new
request, equal ones changing nothing; a request without the field leaves what is frozen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from duologue.dialogue.byte_lru import ENTRY_BYTES, ByteLru
from duologue.dialogue.messages import MessageLike, template_messages
from duologue.errors import InvalidRequestError

Placement: TypeAlias = Literal["freeze", "tail"]
_ROLES = ("assistant", "developer", "system", "user")
_MAX_INSERTS = 64


@dataclass(frozen=True)
class VolatileInsert:
    """A message that the client does not keep in its history."""

    role: str
    content: str
    placement: Placement = "freeze"


@dataclass(frozen=True)
class PlacedMessages:
    """`origins[i]` is the place of `messages[i]` in the request, None for an insert. `passed` are the places in the request of the
    user messages behind which an earlier request had an insert that is not there now."""

    messages: tuple[MessageLike, ...]
    origins: tuple[int | None, ...]
    passed: frozenset[int] = frozenset()


def parse_volatile(value: object) -> tuple[VolatileInsert, ...] | None:
    """The request's field `volatile`, a list of `{"role": ..., "content": ..., "placement": "freeze" | "tail"}`
    (`freeze` if absent); None if the field is absent. Raises `InvalidRequestError`, naming the entry."""
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise InvalidRequestError(
            "volatile must be a list of messages", param="volatile", code="invalid_value"
        )
    if len(value) > _MAX_INSERTS:
        raise InvalidRequestError(
            f"volatile has {len(value)} entries; at most {_MAX_INSERTS} are supported",
            param="volatile",
            code="invalid_value",
        )
    return tuple(_insert(entry, f"volatile[{i}]") for i, entry in enumerate(value))


def _insert(entry: object, where: str) -> VolatileInsert:
    if not isinstance(entry, Mapping):
        raise InvalidRequestError(
            f"{where} must be an object with role and content", param=where, code="invalid_value"
        )
    unknown = sorted(map(str, entry.keys() - {"role", "content", "placement"}))
    if unknown:
        raise InvalidRequestError(
            f"{where} has the unknown field {unknown[0]!r}", param=where, code="invalid_value"
        )
    role, content = entry.get("role", "system"), entry.get("content")
    placement = entry.get("placement", "freeze")
    if role not in _ROLES:
        raise InvalidRequestError(
            f"{where}.role is {role!r}; it must be one of {', '.join(_ROLES)}",
            param=f"{where}.role",
            code="invalid_value",
        )
    if not isinstance(content, str) or not content:
        raise InvalidRequestError(
            f"{where}.content must be a non-empty string", param=f"{where}.content", code="invalid_value"
        )
    if placement not in ("freeze", "tail"):
        raise InvalidRequestError(
            f"{where}.placement is {placement!r}; it must be 'freeze' or 'tail'",
            param=f"{where}.placement",
            code="invalid_value",
        )
    return VolatileInsert(role, content, placement)


class VolatileStore:
    """What was frozen where, the least recently used dropped beyond `budget_bytes`. Safe to use from several
    threads."""

    def __init__(self, budget_bytes: int = 16 << 20) -> None:
        self._frozen: ByteLru[tuple[bytes, str, bytes], tuple[VolatileInsert, ...]] = ByteLru(
            budget_bytes, self._dropped
        )
        self._places: dict[bytes, dict[str, set[bytes]]] = {}  # by salt and key, the digests

    def place(
        self,
        messages: Sequence[MessageLike],
        volatile: Sequence[VolatileInsert] | None,
        *,
        salt: bytes = b"",
        key: str | None = None,
        remember: bool = True,
    ) -> PlacedMessages:
        """The messages with earlier and new inserts. Without `remember` nothing new is kept (a request that only
        looks up). `key` is the `prompt_cache_key`.

        Raises `InvalidRequestError` for malformed messages, for an insert to freeze without a key, and for any
        insert if there is no user message.
        """
        frozen_now = tuple(insert for insert in volatile or () if insert.placement == "freeze")
        tail = [insert for insert in volatile or () if insert.placement == "tail"]
        if frozen_now and key is None:
            raise InvalidRequestError(
                "volatile inserts that are to be frozen need a prompt_cache_key, one per dialogue, so that they "
                "do not get into other dialogues; send one, or use placement 'tail'",
                param="volatile",
                code="invalid_value",
            )
        before: dict[int, tuple[VolatileInsert, ...]] = {}
        behind: dict[int, tuple[VolatileInsert, ...]] = {}
        last_user = None
        known = self._places.get(salt, ())
        if volatile is not None or key in known or _tails_of(key) in known:
            for last_user, digest in _user_digests(messages):
                before[last_user] = self._get(salt, key, digest)
                behind[last_user] = self._get(salt, _tails_of(key), digest)
            if last_user is not None and remember and tail:
                self._put(salt, _tails_of(key), digest, tuple(tail))
            if last_user is not None and volatile is not None:
                if remember and key is not None and frozen_now != before[last_user]:
                    self._put(salt, key, digest, frozen_now)
                before[last_user] = frozen_now
        if volatile and last_user is None:
            raise InvalidRequestError(
                "volatile inserts need a user message to stand by", param="volatile", code="invalid_value"
            )
        placed: list[MessageLike] = []
        origins: list[int | None] = []
        for i, message in enumerate(messages):
            around = [*before.get(i, ()), None, *(tail if i == last_user else ())]
            placed += [message if insert is None else _message(insert) for insert in around]
            origins += [i if insert is None else None for insert in around]
        passed = {
            i for i, inserts in behind.items() if inserts and not (i == last_user and inserts == tuple(tail))
        }
        return PlacedMessages(tuple(placed), tuple(origins), frozenset(passed))

    def _get(self, salt: bytes, key: str | None, digest: bytes) -> tuple[VolatileInsert, ...]:
        return () if key is None else self._frozen.get((salt, key, digest)) or ()

    def _put(self, salt: bytes, key: str, digest: bytes, inserts: tuple[VolatileInsert, ...]) -> None:
        with self._frozen.lock:
            if not inserts:
                self._frozen.remove((salt, key, digest))
                return
            cost = 2 * ENTRY_BYTES + sys.getsizeof(key)
            cost += sum(ENTRY_BYTES + sys.getsizeof(insert.content) for insert in inserts)
            self._places.setdefault(salt, {}).setdefault(key, set()).add(digest)
            if not self._frozen.put((salt, key, digest), inserts, cost):
                self._dropped((salt, key, digest))

    def forget(self, salt: bytes) -> None:
        """Drops all inserts of this salt."""
        with self._frozen.lock:
            for key in list(self._places.get(salt, ())):
                self.forget_key(salt, key)

    def forget_key(self, salt: bytes, key: str) -> None:
        """Drops the inserts of one dialogue."""
        with self._frozen.lock:
            for name in (key, _tails_of(key)):
                for digest in list(self._places.get(salt, {}).get(name, ())):
                    self._frozen.remove((salt, name, digest))

    def _dropped(self, place: tuple[bytes, str, bytes]) -> None:
        salt, key, digest = place
        keys = self._places.get(salt, {})
        digests = keys.get(key, set())
        digests.discard(digest)
        if not digests:
            keys.pop(key, None)
        if not keys:
            self._places.pop(salt, None)

    @property
    def used_bytes(self) -> int:
        """Memory of the entries, about; at most the budget."""
        return self._frozen.used_bytes

    def __len__(self) -> int:
        return len(self._frozen)


def _tails_of(key: str | None) -> str:
    """The name under which it is remembered where inserts stood for one turn, to tell what became of the cache's branch. No key can
    be spelled so."""
    return f"\0{key or ''}"


def _message(insert: VolatileInsert) -> dict[str, Any]:
    return {"role": insert.role, "content": insert.content}


def _user_digests(messages: Sequence[MessageLike]) -> Iterator[tuple[int, bytes]]:
    """Place of each user message, with a digest of the dialogue up to its end. White space at the ends of a
    message does not count: clients trim replies."""
    state = blake2b(digest_size=16)
    for i, message in enumerate(template_messages(messages)):
        text = f"{message['role']}\0{message.get('name') or ''}\0{message['content'].strip()}"
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little") + data)
        if message["role"] == "user":
            yield i, state.digest()
