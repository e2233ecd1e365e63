"""Replies that were generated here: their text, and the token ids that it was sent as.

A client sends a reply back as text, and text does not determine ids: a model may write a word in other pieces
than the tokenizer would. Encoded afresh, the history would differ from what is cached, from that reply on.

An entry also names what the reply was generated after: a digest of the prompt's ids. Of replies with equal
text the one generated after the same prompt is taken, so that a dialogue finds its own, and else the newest.
Ids among which there are control tokens (a reply with `ignore_eos` can have some) are taken after the same
prompt only: what no text shows must not wander into another dialogue.
"""

from __future__ import annotations

import codecs
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import TypeAlias

import numpy as np

from duologue.dialogue.byte_lru import ENTRY_BYTES, ByteLru
from duologue.dialogue.piece_encoder import PieceEncoder

_EntryKey: TypeAlias = tuple[bytes, str, bytes, str]  # salt, trimmed text, digest of the prompt, text
_MAX_VARIANTS_TRIED = 8  # of one text, generated after other prompts


class PromptDigest:
    """Names a sequence of ids by its content; grows with it."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)

    def update(self, ids: array[int]) -> None:
        """Append ids (int32)."""
        self._hash.update(ids)

    def after(self, ids: array[int]) -> bytes:
        """The digest that `update(ids)` would lead to."""
        forked = self._hash.copy()
        forked.update(ids)
        return forked.digest()


@dataclass
class _Entry:
    ids: array[int]  # int32
    has_control: bool
    keys: set[str | None] = field(default_factory=set)


# By digest of the prompt, the one that was remembered last at the end, and then by text.
_Variants: TypeAlias = dict[bytes, dict[str, _Entry]]


class ReplyStore:
    """Generated replies by salt and text, the least recently used dropped beyond `budget_bytes`. Safe to use
    from several threads."""

    def __init__(self, pieces: PieceEncoder, budget_bytes: int = 64 << 20) -> None:
        self._pieces = pieces
        self._tokenizer = pieces.tokenizer
        self._entries: ByteLru[_EntryKey, _Entry] = ByteLru(budget_bytes, self._dropped)
        self._variants: dict[bytes, dict[str, _Variants]] = {}  # by salt and trimmed text

    def remember(
        self,
        salt: bytes,
        prompt_ids: Iterable[int],
        text: str,
        token_ids: Sequence[int],
        key: str | None = None,
    ) -> None:
        """Keeps a reply, whole or partial, as it was shown: `text` of `token_ids`, without the token that ended
        it. A stop string or a half character may have cut the text: then ids are kept as far as their text
        goes, and canonical ones after that. White space alone is not kept.

        `key` is the `prompt_cache_key` under which the reply can be forgotten.
        """
        core = text.strip()
        ids = array("i", self._ids_of_shown(text, token_ids) if core else ())
        if not ids:
            return
        digest = prompt_digest(prompt_ids)
        entry = _Entry(ids, any(map(self._tokenizer.is_control, ids)))
        cost = 3 * ENTRY_BYTES + sys.getsizeof(text) + sys.getsizeof(core) + ids.itemsize * len(ids)
        with self._entries.lock:
            variants = self._variants.setdefault(salt, {}).setdefault(core, {})
            same_prompt = variants.pop(digest, {})
            older = same_prompt.pop(text, None)
            entry.keys = {key} if older is None else older.keys | {key}
            same_prompt[text] = entry
            variants[digest] = same_prompt
            entry_key = salt, core, digest, text
            if not self._entries.put(entry_key, entry, cost) and older is None:
                self._dropped(entry_key)

    def _ids_of_shown(self, text: str, token_ids: Sequence[int]) -> Iterable[int]:
        if self._tokenizer.decode(token_ids) == text:
            return token_ids
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        shown = kept = kept_chars = 0
        for count, token_id in enumerate(token_ids, start=1):
            data = b"" if self._tokenizer.is_control(token_id) else self._tokenizer.token_bytes(token_id)
            piece = decoder.decode(data if shown else self._tokenizer.strip_prefix(data))
            if not text.startswith(piece, shown):
                break
            shown += len(piece)
            if not decoder.getstate()[0]:
                kept, kept_chars = count, shown
        rest = text[kept_chars:]
        if not kept_chars or not rest:
            return token_ids[:kept]
        return [*token_ids[:kept], *self._pieces.encode(rest)]

    def knows(self, salt: bytes, text: str) -> bool:
        """Whether there is a reply with this text, white space at the ends aside."""
        return text.strip() in self._variants.get(salt, ())

    def find(self, salt: bytes, text: str, digest: bytes, *, exact_end: bool = False) -> array[int] | None:
        """Ids of the reply that `text` is, or is with white space trimmed from its ends (`exact_end`: from its
        beginning only), after the prompt that `digest` names."""
        core = text.strip()
        with self._entries.lock:
            variants = self._variants.get(salt, {}).get(core)
            if not variants:
                return None
            chosen = _choose(variants, text, digest, exact_end)
            if chosen is None:
                return None
            self._entries.get((salt, core, *chosen))  # now the last used
            return variants[chosen[0]][chosen[1]].ids

    def forget(self, salt: bytes) -> None:
        """Drops every reply of this salt."""
        with self._entries.lock:
            for entry_key in list(self._keys_of(salt)):
                self._entries.remove(entry_key)

    def forget_key(self, salt: bytes, key: str | None) -> None:
        """Drops the replies that were remembered under `key` and under no other."""
        with self._entries.lock:
            for entry_key in list(self._keys_of(salt)):
                _, core, digest, text = entry_key
                entry = self._variants[salt][core][digest][text]
                entry.keys.discard(key)
                if not entry.keys:
                    self._entries.remove(entry_key)

    def _keys_of(self, salt: bytes) -> Iterator[_EntryKey]:
        for core, variants in self._variants.get(salt, {}).items():
            for digest, by_text in variants.items():
                for text in by_text:
                    yield salt, core, digest, text

    def _dropped(self, entry_key: _EntryKey) -> None:
        salt, core, digest, text = entry_key
        texts = self._variants.get(salt, {})
        variants = texts.get(core, {})
        by_text = variants.get(digest, {})
        by_text.pop(text, None)
        if not by_text:
            variants.pop(digest, None)
        if not variants:
            texts.pop(core, None)
        if not texts:
            self._variants.pop(salt, None)

    @property
    def used_bytes(self) -> int:
        """Memory of the entries, about; at most the budget."""
        return self._entries.used_bytes

    def __len__(self) -> int:
        return len(self._entries)


def prompt_digest(ids: Iterable[int]) -> bytes:
    """The digest that names a prompt's ids."""
    data = ids if isinstance(ids, (np.ndarray, array)) else list(ids)
    return blake2b(np.asarray(data, dtype=np.int32).tobytes(), digest_size=16).digest()


def _choose(variants: _Variants, text: str, digest: bytes, exact_end: bool) -> tuple[bytes, str] | None:
    """Digest and text of the variant to take for `text`."""
    own = _of_text(variants.get(digest, {}), text, exact_end)
    if own is not None:
        return digest, own
    for other in islice(reversed(variants), _MAX_VARIANTS_TRIED):
        if other != digest:
            plain = {stored: entry for stored, entry in variants[other].items() if not entry.has_control}
            found = _of_text(plain, text, exact_end)
            if found is not None:
                return other, found
    return None


def _of_text(by_text: dict[str, _Entry], text: str, exact_end: bool) -> str | None:
    if text in by_text:
        return text
    return next((stored for stored in reversed(by_text) if _is_trimmed(text, stored, exact_end)), None)


def _is_trimmed(text: str, stored: str, exact_end: bool) -> bool:
    """Whether `text` is `stored` less some white space at its ends; both have the same core."""
    lead, trail = (len(text) - len(text.lstrip()), len(text) - len(text.rstrip()))
    begins = stored[: len(stored) - len(stored.lstrip())].endswith(text[:lead])
    stored_trail = stored[len(stored.rstrip()) :]
    text_trail = text[len(text) - trail :]
    return begins and (stored_trail == text_trail if exact_end else stored_trail.startswith(text_trail))
