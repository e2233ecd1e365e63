"""What the objects that the API sends back have in common; those of chats and of texts are in modules of their own.

A stream sends one chunk per token, so everything in a chunk except the text is formatted once per request.
Text is escaped to ASCII: some clients split event streams at U+2028 or U+0085, which JSON allows in strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any

DONE_EVENT = b"data: [DONE]\n\n"

quoted = encode_basestring_ascii
"""A text as a JSON string of ASCII."""


@dataclass(frozen=True)
class Usage:
    """Token counts of one request; `cached_tokens` is the part of the prompt whose KV was already there.

    Where it was comes beside it, by tier, and both are always present: a missing count cannot be told from zero.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cached_tokens_details": {"memory": self.cached_tokens},
            },
        }


@dataclass(frozen=True)
class Header:
    """What every object of one reply repeats."""

    id: str
    created_s: int
    model: str


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream, in the form that OpenAI's clients raise."""
    return b"data: " + body + b"\n\n"


def model_object(name: str, created_s: int, context_tokens: int) -> dict[str, Any]:
    """One entry of `/v1/models`; `context_tokens` is an extension."""
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "duologue",
        "context_tokens": context_tokens,
    }
