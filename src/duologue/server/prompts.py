"""From a request's bytes to a checked request and its prompt's tokens, without holding up the streams of others.

Replies are remembered as the ids that they were generated as, so that the next turn's prompt goes on where the cache ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duologue.api.chat import ChatCompletionRequest, parse_chat_request
from duologue.api.errors import ModelNotFoundError
from duologue.dialogue.encoder import DialogueEncoder
from duologue.dialogue.truncation import Truncation
from duologue.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.engine.engine import Engine

# What takes about a millisecond on the event loop; more of it goes to a thread.
_INLINE_PARSE_BYTES = 128 * 1024
_INLINE_ENCODE_CHARS = 8192
_CHARS_PER_MESSAGE = 64  # rendering costs something for each message, however short


class Prompts:
    """Parses and encodes chat requests for one engine, and knows the replies that it gave and the inserts that it was sent."""

    def __init__(self, engine: Engine) -> None:
        self._model_name = engine.model_name
        self._context_tokens = engine.context_tokens
        self._tokenizer = engine.tokenizer
        sizes = Truncation.of_context(engine.context_tokens)
        self._dialogues = DialogueEncoder(engine.template, engine.tokenizer, sizes)

    async def parse(self, body: bytes) -> ChatCompletionRequest:
        """Raises `InvalidRequestError`, or `ModelNotFoundError` when another model is asked for."""
        if len(body) <= _INLINE_PARSE_BYTES:
            request = parse_chat_request(body)
        else:
            request = await asyncio.get_running_loop().run_in_executor(None, parse_chat_request, body)
        if request.model != self._model_name:
            raise ModelNotFoundError(request.model, self._model_name)
        return request

    async def encode(
        self, request: ChatCompletionRequest, scope: CacheScope, *, only_look: bool = False
    ) -> EncodedDialogue:
        """The prompt. With `only_look` nothing that the request says is kept. Raises `InvalidRequestError` or `TemplateError`."""
        chars = sum(
            len(message.content) + len(message.name or "") + _CHARS_PER_MESSAGE
            for message in request.messages
        )
        chars += sum(len(insert.content) + _CHARS_PER_MESSAGE for insert in request.volatile or ())
        if chars <= _INLINE_ENCODE_CHARS:
            return self._encode(request, scope, only_look)
        return await asyncio.get_running_loop().run_in_executor(None, self._encode, request, scope, only_look)

    def _encode(self, request: ChatCompletionRequest, scope: CacheScope, only_look: bool) -> EncodedDialogue:
        self._refuse_hopeless(request)
        return self._dialogues.encode(
            request.template_messages(),
            salt=scope.salt,
            key=scope.key,
            truncation=request.cut(self._context_tokens) or "disabled",
            volatile=request.volatile,
            continue_final_message=request.continue_final_message,
            remember=not only_look,
        )

    def _refuse_hopeless(self, request: ChatCompletionRequest) -> None:
        """Megabytes take the tokenizer many seconds: what cannot fit by its bytes alone is refused before."""
        for place, message in enumerate(request.messages):
            if len(message.content) <= 4 * self._context_tokens:
                continue
            size_bytes = len(message.content.strip().encode("utf-8", "surrogatepass"))
            least_tokens = size_bytes // self._tokenizer.longest_token_bytes
            # Twice the context, for templates that show only a part of a message.
            if least_tokens > 2 * self._context_tokens:
                raise InvalidRequestError(
                    f"messages[{place}] alone has at least {least_tokens} tokens, but the context has "
                    f"{self._context_tokens}; shorten it",
                    param=f"messages[{place}].content",
                    code="context_length_exceeded",
                )

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
