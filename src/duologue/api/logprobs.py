"""Log-probabilities of generated tokens, in the shapes of both completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duologue.dialogue.tokenizer import Tokenizer
    from duologue.engine.events import TokenLogprob

_LEAST = -9999.0  # JSON has no infinity; OpenAI's number for what is as good as impossible


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """A chat choice's `logprobs`."""
    content = [
        {
            **_token(tokenizer, entry.token_id, entry.logprob),
            "top_logprobs": [_token(tokenizer, token, logprob) for token, logprob in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    spelling = tokenizer.token_bytes(token_id)
    return {
        "token": spelling.decode("utf-8", "replace"),
        "logprob": max(logprob, _LEAST),
        "bytes": list(spelling),
    }


class TextLogprobs:
    """A text choice's `logprobs`, entry after entry."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The object of the next entries.

        `text_offset` counts characters of the reply; a token that is a part of one stands where that begins. The chosen token is
        among `top_logprobs` always.
        """
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(entry.token_id)))
        return {
            "tokens": [self._spelling(entry.token_id) for entry in entries],
            "token_logprobs": [max(entry.logprob, _LEAST) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top = {token: max(logprob, _LEAST) for token, logprob in entry.top}
        top.setdefault(entry.token_id, max(entry.logprob, _LEAST))
        return {self._spelling(token): logprob for token, logprob in top.items()}

    def _spelling(self, token_id: int) -> str:
        """Its text, or its bytes as OpenAI writes those of a part of a character: different tokens are different keys."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
