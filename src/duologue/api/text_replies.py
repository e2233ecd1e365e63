"""The objects of `/v1/completions`: whole replies, and the chunks of streamed ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from duologue.api.replies import DONE_EVENT, Header, Usage, quoted


@dataclass(frozen=True)
class TextChoice:
    """One whole continuation."""

    text: str
    finish_reason: str
    logprobs: Mapping[str, Any] | None = None


def text_completion(header: Header, choices: Sequence[TextChoice], usage: Usage) -> bytes:
    """The body of a reply that is not streamed."""
    completion = {
        "id": header.id,
        "object": "text_completion",
        "created": header.created_s,
        "model": header.model,
        "choices": [
            {
                "index": index,
                "text": choice.text,
                "logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(choices)
        ],
        "usage": usage.as_dict(),
    }
    return json.dumps(completion).encode()


class TextChunks:
    """Encodes the server-sent events of one streamed reply with any number of choices."""

    def __init__(self, header: Header, *, choices: int = 1, with_usage: bool = False) -> None:
        self._head = (
            f'data: {{"id":{quoted(header.id)},"object":"text_completion",'
            f'"created":{header.created_s},"model":{quoted(header.model)},"choices":['
        )
        self._tail = (',"usage":null' if with_usage else "") + "}\n\n"
        self._before = [f'{self._head}{{"index":{index},"text":' for index in range(choices)]
        self._after = f',"logprobs":null,"finish_reason":null}}]{self._tail}'
        self._with_usage = with_usage

    def delta(self, text: str, index: int = 0, logprobs: Mapping[str, Any] | None = None) -> bytes:
        """One piece of text."""
        if logprobs is None:
            return f"{self._before[index]}{quoted(text)}{self._after}".encode()
        return (
            f'{self._before[index]}{quoted(text)},"logprobs":{json.dumps(logprobs)},'
            f'"finish_reason":null}}]{self._tail}'
        ).encode()

    def finish(self, reason: str, index: int = 0) -> bytes:
        """The last event of a choice: why it ended."""
        return f'{self._before[index]}"","logprobs":null,"finish_reason":"{reason}"}}]{self._tail}'.encode()

    def end(self, usage: Usage) -> bytes:
        """What closes the stream: usage if asked for, and the end marker."""
        if not self._with_usage:
            return DONE_EVENT
        return f'{self._head}],"usage":{json.dumps(usage.as_dict())}}}\n\n'.encode() + DONE_EVENT
