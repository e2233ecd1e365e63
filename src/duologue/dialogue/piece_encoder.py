"""Encodes the text pieces of prompts, and remembers the ids of pieces that were seen lately.

A dialogue comes back with all its earlier messages, so on each turn nearly every piece is an old one.
"""

from __future__ import annotations

import copy
import sys
from array import array
from enum import Enum

from duologue.dialogue.byte_lru import ENTRY_BYTES, ByteLru
from duologue.dialogue.tokenizer import Tokenizer


class After(Enum):
    """What stands before a piece; some tokenizers put a space before the first word, depending on it."""

    START = "start"
    CONTROL = "control"
    TEXT = "text"


class PieceEncoder:
    """Text to ids as `Tokenizer.encode_pieces` does it piece by piece. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, budget_bytes: int = 64 << 20) -> None:
        self.tokenizer = tokenizer
        self._known: ByteLru[tuple[bytes, str, After], array[int]] = ByteLru(budget_bytes)
        self._salt = b""

    def scoped(self, salt: bytes) -> PieceEncoder:
        """An encoder within the same budget that knows only what was seen under this salt: how long a text takes
        must not tell whether others have sent it."""
        scoped = copy.copy(self)
        scoped._salt = salt
        return scoped

    def encode(self, text: str, after: After = After.TEXT) -> array[int]:
        """Ids (int32) of a text that holds no control token, not to be changed by the caller.

        Raises `InvalidRequestError` if `text` is not Unicode.
        """
        key = self._salt, text, after
        ids = self._known.get(key)
        if ids is None:
            ids = array("i", self._encode(text, after))
            self._known.put(key, ids, ENTRY_BYTES + sys.getsizeof(text) + ids.itemsize * len(ids))
        return ids

    @property
    def used_bytes(self) -> int:
        """Memory of what is remembered, about; at most the budget."""
        return self._known.used_bytes

    def _encode(self, text: str, after: After) -> list[int]:
        if after is After.START:
            return self.tokenizer.encode_pieces([text])
        before: int | str = 0 if after is After.CONTROL else "a"  # any id, any text: pieces do not merge
        skip = len(self.tokenizer.encode_pieces([before]))
        return self.tokenizer.encode_pieces([before, text])[skip:]
