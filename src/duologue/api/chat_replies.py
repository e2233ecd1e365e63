"""The objects of `/v1/chat/completions`: whole replies, and the chunks of streamed ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duologue.api.replies import DONE_EVENT, Header, Usage, quoted

if TYPE_CHECKING:
    from duologue.dialogue.tool_parser import CallDelta, ToolCallText


@dataclass(frozen=True)
class ChatChoice:
    """One whole reply: text, calls of functions with their ids, or both."""

    text: str
    finish_reason: str
    calls: Sequence[tuple[str, ToolCallText]] = ()
    logprobs: Mapping[str, Any] | None = None

    def as_dict(self, index: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.calls:
            message["content"] = self.text or None
            message["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call_id, call in self.calls
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
        }


def chat_completion(
    header: Header,
    choices: Sequence[ChatChoice],
    usage: Usage,
    cache_report: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of a reply that is not streamed. `cache_report` is an extension, there when asked for."""
    completion: dict[str, Any] = {
        "id": header.id,
        "object": "chat.completion",
        "created": header.created_s,
        "model": header.model,
        "choices": [choice.as_dict(index) for index, choice in enumerate(choices)],
        "usage": usage.as_dict(),
    }
    if cache_report is not None:
        completion["cache_report"] = cache_report
    return json.dumps(completion).encode()


class ChatChunks:
    """Encodes the server-sent events of one streamed reply with any number of choices."""

    def __init__(self, header: Header, *, choices: int = 1, with_usage: bool = False) -> None:
        self._head = (
            f'data: {{"id":{quoted(header.id)},"object":"chat.completion.chunk",'
            f'"created":{header.created_s},"model":{quoted(header.model)},"choices":['
        )
        # OpenAI: with usage asked for, every chunk but the last has `usage: null`.
        self._tail = (',"usage":null' if with_usage else "") + "}\n\n"
        self._before = [f'{self._head}{{"index":{index},"delta":{{"content":' for index in range(choices)]
        self._after = f'}},"logprobs":null,"finish_reason":null}}]{self._tail}'
        self._with_usage = with_usage

    def role(self, index: int = 0) -> bytes:
        """The first event of a choice: the role and no text yet."""
        return self._chunk(index, '{"role":"assistant","content":"","refusal":null}')

    def delta(self, text: str, index: int = 0, logprobs: Mapping[str, Any] | None = None) -> bytes:
        """One piece of text."""
        if logprobs is None:
            return f"{self._before[index]}{quoted(text)}{self._after}".encode()
        return self._chunk(index, f'{{"content":{quoted(text)}}}', logprobs=json.dumps(logprobs))

    def call(self, delta: CallDelta, call_id: str, index: int = 0) -> bytes:
        """One piece of a call: what begins it has the name, later ones more of the arguments."""
        function: dict[str, Any] = {"arguments": delta.arguments}
        call: dict[str, Any] = {"index": delta.number, "function": function}
        if delta.name is not None:
            call |= {"id": call_id, "type": "function", "function": {"name": delta.name, **function}}
        return self._chunk(index, json.dumps({"tool_calls": [call]}))

    def finish(self, reason: str, index: int = 0, cache_report: Mapping[str, Any] | None = None) -> bytes:
        """The last event of a choice: why it ended (and `cache_report`, if asked for)."""
        extra = "" if cache_report is None else f',"cache_report":{json.dumps(cache_report)}'
        return self._chunk(index, "{}", reason=f'"{reason}"', extra=extra)

    def end(self, usage: Usage) -> bytes:
        """What closes the stream: usage if asked for, and the end marker."""
        if not self._with_usage:
            return DONE_EVENT
        return f'{self._head}],"usage":{json.dumps(usage.as_dict())}}}\n\n'.encode() + DONE_EVENT

    def _chunk(
        self, index: int, delta: str, *, logprobs: str = "null", reason: str = "null", extra: str = ""
    ) -> bytes:
        choice = f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{reason}}}'
        return f"{self._head}{choice}]{extra}{self._tail}".encode()
