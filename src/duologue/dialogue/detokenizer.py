"""Streaming detokenizer: token ids in, text out, whole characters only.

A token is a run of bytes and may end inside a UTF-8 character, so the bytes go through an incremental decoder
that keeps an unfinished character back. Each token is looked at once; nothing is decoded again.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection

from duologue.dialogue.tokenizer import Tokenizer


class Detokenizer:
    """Text of one reply. All that `push` and the final `flush` return, joined, is `tokenizer.decode` of all ids.

    Control tokens are left out with `skip_special`, but for those of `shown_ids`, which are spelled.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, shown_ids: Collection[int] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._shown_ids = shown_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._at_start = True

    def push(self, token_id: int) -> str:
        """The characters that this token completes, maybe none. Bytes that cannot be UTF-8 become U+FFFD."""
        if self._skip_special and self._tokenizer.is_control(token_id) and token_id not in self._shown_ids:
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if self._at_start and data:
            data = self._tokenizer.strip_prefix(data)
            self._at_start = False
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Ends the reply: an unfinished character that was kept back becomes U+FFFD. Ready for another
        reply."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        self._at_start = True
        return rest
