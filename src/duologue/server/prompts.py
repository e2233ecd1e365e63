"""From a checked request to its prompt's tokens, without holding up the streams of others.

Replies are remembered as the ids that they were generated as, so that the next turn's prompt goes on where the cache ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duologue.dialogue.encoder import DialogueEncoder
from duologue.dialogue.truncation import Truncation
from duologue.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from duologue.api.chat import ChatCompletionRequest
    from duologue.api.messages import ChatMessage
    from duologue.api.tools import Tool
    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.dialogue.volatile import VolatileInsert
    from duologue.engine.engine import Engine

# What takes about a millisecond on the event loop; more of it goes to a thread.
_INLINE_ENCODE_CHARS = 8192
_CHARS_PER_MESSAGE = 64  # rendering costs something for each message, however short


class Prompts:
    """Encodes chats and texts for one engine, and knows the replies that it gave and the inserts that it was sent."""

    def __init__(self, engine: Engine) -> None:
        self._context_tokens = engine.context_tokens
        self._tokenizer = engine.tokenizer
        sizes = Truncation.of_context(engine.context_tokens)
        self._dialogues = DialogueEncoder(engine.template, engine.tokenizer, sizes)

    async def encode(
        self, request: ChatCompletionRequest, scope: CacheScope, *, only_look: bool = False
    ) -> EncodedDialogue:
        """The prompt. With `only_look` nothing that the request says is kept. Raises `InvalidRequestError` or `TemplateError`."""
        chars = sum(message.chars + _CHARS_PER_MESSAGE for message in request.messages)
        chars += sum(len(insert.content) + _CHARS_PER_MESSAGE for insert in request.volatile or ())
        chars += _chars_of_tools(request.tools, _INLINE_ENCODE_CHARS)
        if chars <= _INLINE_ENCODE_CHARS:
            return self._encode(request, scope, only_look)
        return await asyncio.get_running_loop().run_in_executor(None, self._encode, request, scope, only_look)

    def _encode(self, request: ChatCompletionRequest, scope: CacheScope, only_look: bool) -> EncodedDialogue:
        self.refuse_hopeless(request.messages, request.tools, request.volatile or ())
        return self._dialogues.encode(
            request.template_messages(),
            salt=scope.salt,
            key=scope.key,
            truncation=request.cut(self._context_tokens) or "disabled",
            tools=request.template_tools(),
            volatile=request.volatile,
            continue_final_message=request.continue_final_message,
            remember=not only_look,
        )

    def refuse_hopeless(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] = (),
        volatile: Sequence[VolatileInsert] = (),
    ) -> None:
        """Megabytes take the tokenizer many seconds: what cannot fit by its bytes alone is refused before."""
        # Twice the context, for templates that show only a part of what they are given.
        most = 2 * self._context_tokens
        for place, message in enumerate(messages):
            where = f"messages[{place}]"
            self._refuse_hopeless_text(message.content, f"{where}.content", most)
            self._refuse_hopeless_text(message.name or "", f"{where}.name", most)
            self._refuse_hopeless_text(message.tool_call_id or "", f"{where}.tool_call_id", most)
            for number, call in enumerate(message.tool_calls or ()):
                arguments = f"{where}.tool_calls[{number}].function.arguments"
                self._refuse_hopeless_text(call.function.arguments, arguments, most)
        for place, insert in enumerate(volatile):
            self._refuse_hopeless_text(insert.content, f"volatile[{place}].content", most)
        self._refuse_hopeless_text("".join(_texts_of_tools(tools)), "tools", most)

    def _refuse_hopeless_text(self, text: str, param: str, limit_tokens: int) -> None:
        if len(text) <= 4 * self._context_tokens:
            return
        size_bytes = len(text.strip().encode("utf-8", "surrogatepass"))
        least_tokens = size_bytes // self._tokenizer.longest_token_bytes
        if least_tokens > limit_tokens:
            raise InvalidRequestError(
                f"{param.removesuffix('.content')} alone has at least {least_tokens} tokens, but the context has "
                f"{self._context_tokens}; shorten it",
                param=param,
                code="context_length_exceeded",
            )

    async def encode_text(self, text: str, *, add_bos: bool = True, param: str = "prompt") -> list[int]:
        """Ids of a prompt that is no chat: special tokens that are spelled in it count. Raises `InvalidRequestError`."""
        return (await self.encode_texts([text], add_bos=add_bos, param=param))[0]

    async def encode_texts(
        self, texts: Sequence[str], *, add_bos: bool = True, param: str = "prompt"
    ) -> list[list[int]]:
        """As `encode_text`, for several prompts at once."""

        def encode() -> list[list[int]]:
            for text in texts:
                self._refuse_hopeless_text(text, param, self._context_tokens)
            adds_bos = add_bos and self._tokenizer.adds_bos
            return [self._tokenizer.encode(text, parse_special=True, add_bos=adds_bos) for text in texts]

        if sum(len(text) + _CHARS_PER_MESSAGE for text in texts) <= _INLINE_ENCODE_CHARS:
            return encode()
        return await asyncio.get_running_loop().run_in_executor(None, encode)

    def remember(
        self, scope: CacheScope, prompt: EncodedDialogue, text: str, token_ids: Sequence[int]
    ) -> None:
        """Keeps what was generated after `prompt`, whole or partial, as it was sent."""
        if text:
            self._dialogues.remember(prompt, text, token_ids, salt=scope.salt, key=scope.key)

    def forget(self, salt: bytes) -> None:
        """Drops all that is remembered under a salt."""
        self._dialogues.forget(salt)

    def forget_key(self, salt: bytes, key: str) -> None:
        """Drops what is remembered under one cache key."""
        self._dialogues.forget_key(salt, key)

    @property
    def memory_bytes(self) -> int:
        """What all that is remembered takes, about; bounded."""
        return self._dialogues.memory_bytes


def _texts_of_tools(tools: Sequence[Tool]) -> Iterator[str]:
    """All their strings, names of members included."""
    rest: list[object] = []
    for tool in tools:
        yield tool.function.name
        rest += [tool.function.description, tool.function.parameters]
        while rest:
            value = rest.pop()
            if isinstance(value, str):
                yield value
            elif isinstance(value, dict):
                yield from value
                rest += value.values()
            elif isinstance(value, list):
                rest += value


def _chars_of_tools(tools: Sequence[Tool], most: int) -> int:
    """Their size, about; counting ends soon after `most`."""
    chars = 0
    for text in _texts_of_tools(tools):
        chars += len(text) + 8  # quotes, commas, what is no string
        if chars > most:
            break
    return chars
