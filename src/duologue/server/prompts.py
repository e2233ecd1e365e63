"""From a request's bytes to a checked request and its prompt's tokens, without holding up the streams of others.

Replies are remembered as the ids that they were generated as, so that the next turn's prompt goes on where the cache ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duologue.api.chat import ChatCompletionRequest, parse_chat_request
from duologue.api.errors import ModelNotFoundError
from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import ReplyStore
from duologue.dialogue.splice import encode_dialogue
from duologue.errors import InvalidRequestError

if TYPE_CHECKING:
    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.engine.engine import Engine

# What takes about a millisecond on the event loop; more of it goes to a thread.
_INLINE_PARSE_BYTES = 128 * 1024
_INLINE_ENCODE_CHARS = 8192
_CHARS_PER_MESSAGE = 64  # rendering costs something for each message, however short


class Prompts:
    """Parses and encodes chat requests for one engine, and knows the replies that it gave. Used on the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pieces = PieceEncoder(engine.tokenizer)
        self._replies = ReplyStore(self._pieces)

    async def parse(self, body: bytes) -> ChatCompletionRequest:
        """Raises `InvalidRequestError`, or `ModelNotFoundError` when another model is asked for."""
        if len(body) <= _INLINE_PARSE_BYTES:
            request = parse_chat_request(body)
        else:
            request = await asyncio.get_running_loop().run_in_executor(None, parse_chat_request, body)
        if request.model != self._engine.model_name:
            raise ModelNotFoundError(request.model, self._engine.model_name)
        return request

    async def encode(self, request: ChatCompletionRequest, scope: CacheScope) -> EncodedDialogue:
        """The prompt. Raises `InvalidRequestError` or `TemplateError`."""
        chars = sum(len(message.content) + _CHARS_PER_MESSAGE for message in request.messages)
        if chars <= _INLINE_ENCODE_CHARS:
            return self._encode(request, scope)
        return await asyncio.get_running_loop().run_in_executor(None, self._encode, request, scope)

    def _encode(self, request: ChatCompletionRequest, scope: CacheScope) -> EncodedDialogue:
        engine = self._engine
        if engine.template is None:
            raise InvalidRequestError(
                f"The model '{engine.model_name}' has no chat template.", param="messages"
            )
        return encode_dialogue(
            engine.template,
            self._pieces.scoped(scope.salt),
            request.template_messages(),
            replies=self._replies,
            salt=scope.salt,
            continue_final_message=request.continue_final_message,
            limit_tokens=engine.context_tokens - 1,
        )

    def remember(self, scope: CacheScope, prompt: EncodedDialogue, text: str, token_ids: list[int]) -> None:
        """Keeps what was generated after `prompt`, whole or partial, as it was sent."""
        if text:
            self._replies.remember(
                scope.salt,
                prompt.ids[: prompt.reply_start],
                prompt.reply_text + text,
                [*prompt.ids[prompt.reply_start :].tolist(), *token_ids],
                scope.key,
            )

    def forget(self, salt: bytes) -> None:
        """Drops all that is remembered under a salt."""
        self._replies.forget(salt)

    def forget_key(self, salt: bytes, key: str) -> None:
        """Drops the replies of one cache key."""
        self._replies.forget_key(salt, key)
