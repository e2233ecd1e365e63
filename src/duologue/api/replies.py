"""The objects that the API sends back: completions, stream chunks, models.

A stream sends one chunk per token, so everything in a chunk except the text is formatted once per request.
Text is escaped to ASCII: some clients split event streams at U+2028 or U+0085, which JSON allows in strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DONE_EVENT = b"data: [DONE]\n\n"


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


def chat_completion(
    completion_id: str,
    created_s: int,
    model: str,
    text: str,
    finish_reason: str,
    usage: Usage,
    cache_report: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of a reply that is not streamed. `cache_report` is an extension, there when asked for."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    completion: dict[str, Any] = {
        "id": completion_id,
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "choices": [choice],
        "usage": usage.as_dict(),
    }
    if cache_report is not None:
        completion["cache_report"] = cache_report
    return json.dumps(completion).encode()


class ChunkEncoder:
    """Encodes the server-sent events of one streamed reply."""

    __slots__ = ("_after", "_before", "_head", "_tail", "_with_usage")

    def __init__(self, completion_id: str, created_s: int, model: str, *, with_usage: bool) -> None:
        self._head = (
            f'data: {{"id":{json.dumps(completion_id)},"object":"chat.completion.chunk",'
            f'"created":{created_s},"model":{json.dumps(model)},"choices":['
        )
        self._before = self._head + '{"index":0,"delta":{"content":'
        # OpenAI: with usage asked for, every chunk but the last has `usage: null`.
        self._tail = (',"usage":null' if with_usage else "") + "}\n\n"
        self._after = f'}},"logprobs":null,"finish_reason":null}}]{self._tail}'
        self._with_usage = with_usage

    def role(self) -> bytes:
        """The first event: the role and no text yet."""
        return self._chunk('{"role":"assistant","content":"","refusal":null}', "null")

    def delta(self, text: str) -> bytes:
        """One piece of text."""
        return f"{self._before}{json.dumps(text)}{self._after}".encode()

    def finish(self, reason: str, usage: Usage, cache_report: Mapping[str, Any] | None = None) -> bytes:
        """The closing events: finish reason (and `cache_report`, if asked for), usage if asked for, and the end marker."""
        extra = "" if cache_report is None else f',"cache_report":{json.dumps(cache_report)}'
        events = self._chunk("{}", f'"{reason}"', extra)
        if self._with_usage:
            events += f'{self._head}],"usage":{json.dumps(usage.as_dict())}}}\n\n'.encode()
        return events + DONE_EVENT

    def _chunk(self, delta: str, reason: str, extra: str = "") -> bytes:
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}'
        return f"{self._head}{choice}]{extra}{self._tail}".encode()


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
