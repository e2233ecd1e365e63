"""Log-probabilities of generated tokens, in the shapes of both completions."""

from __future__ import annotations

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


def text_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """A text choice's `logprobs`; `offset` is the place of its first token, in characters."""
    tokens = [_spelling(tokenizer, entry.token_id) for entry in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [max(entry.logprob, _LEAST) for entry in entries],
        "top_logprobs": [
            {_spelling(tokenizer, token): max(logprob, _LEAST) for token, logprob in entry.top}
            for entry in entries
        ],
        "text_offset": offsets,
    }


def _spelling(tokenizer: Tokenizer, token_id: int) -> str:
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace")
