"""From a request's bytes to a checked request and its prompt's tokens, without holding up the streams of others.

Replies are remembered as the ids that they were generated as, so that the next turn's prompt goes on where the cache ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from duologue.api.chat import ChatCompletionRequest, parse_chat_request
from duologue.api.errors import ModelNotFoundError
from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import ReplyStore
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.token_counter import TokenCounter
from duologue.dialogue.truncation import find_cut
from duologue.dialogue.volatile import VolatileStore
from duologue.errors import InvalidRequestError

if TYPE_CHECKING:
    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.dialogue.template import ChatTemplate
    from duologue.dialogue.volatile import PlacedMessages
    from duologue.engine.engine import Engine

# What takes about a millisecond on the event loop; more of it goes to a thread.
_INLINE_PARSE_BYTES = 128 * 1024
_INLINE_ENCODE_CHARS = 8192
_CHARS_PER_MESSAGE = 64  # rendering costs something for each message, however short


class Prompts:
    """Parses and encodes chat requests for one engine, and knows the replies that it gave and the inserts that it was sent."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pieces = PieceEncoder(engine.tokenizer)
        self._replies = ReplyStore(self._pieces)
        self._inserts = VolatileStore()
        self._counter: TokenCounter | None = None

    async def parse(self, body: bytes) -> ChatCompletionRequest:
        """Raises `InvalidRequestError`, or `ModelNotFoundError` when another model is asked for."""
        if len(body) <= _INLINE_PARSE_BYTES:
            request = parse_chat_request(body)
        else:
            request = await asyncio.get_running_loop().run_in_executor(None, parse_chat_request, body)
        if request.model != self._engine.model_name:
            raise ModelNotFoundError(request.model, self._engine.model_name)
        return request

    async def encode(
        self, request: ChatCompletionRequest, scope: CacheScope, *, only_look: bool = False
    ) -> EncodedDialogue:
        """The prompt. With `only_look` nothing that the request says is kept. Raises `InvalidRequestError` or `TemplateError`."""
        chars = sum(len(message.content) + _CHARS_PER_MESSAGE for message in request.messages)
        if chars <= _INLINE_ENCODE_CHARS:
            return self._encode(request, scope, only_look)
        return await asyncio.get_running_loop().run_in_executor(None, self._encode, request, scope, only_look)

    def _encode(self, request: ChatCompletionRequest, scope: CacheScope, only_look: bool) -> EncodedDialogue:
        context_tokens = self._engine.context_tokens
        placed = self._inserts.place(
            request.template_messages(),
            request.volatile,
            salt=scope.salt,
            key=scope.key,
            remember=not only_look,
        )
        truncation = request.cut(context_tokens)
        if truncation is None:
            return self._encode_kept(placed, range(len(placed.messages)), request, scope, context_tokens - 1)
        counts = self._token_counter().count(placed.messages, salt=scope.salt)
        # An insert neither begins a turn nor is pinned.
        roles = ["insert" if origin is None else request.messages[origin].role for origin in placed.origins]
        # Spliced replies may be longer than what was counted; half of the reserve is left to the new reply in any case.
        limit_tokens = truncation.limit_tokens - -(-truncation.reserve_tokens // 2)
        for extra_steps in range(len(roles) + 1):
            cut = find_cut(truncation, roles, counts.messages, counts.fixed, extra_steps=extra_steps)
            prompt = self._encode_kept(placed, cut.kept(len(roles)), request, scope, limit_tokens)
            if len(prompt.ids) <= limit_tokens:
                break
        return prompt

    def _encode_kept(
        self,
        placed: PlacedMessages,
        kept: Sequence[int],
        request: ChatCompletionRequest,
        scope: CacheScope,
        limit_tokens: int,
    ) -> EncodedDialogue:
        return encode_dialogue(
            self._template(),
            self._pieces.scoped(scope.salt),
            [placed.messages[place] for place in kept],
            replies=self._replies,
            salt=scope.salt,
            continue_final_message=request.continue_final_message,
            limit_tokens=limit_tokens,
            origins=[placed.origins[place] for place in kept],
        )

    def _template(self) -> ChatTemplate:
        template = self._engine.template
        if template is None:
            raise InvalidRequestError(
                f"The model '{self._engine.model_name}' has no chat template.", param="messages"
            )
        return template

    def _token_counter(self) -> TokenCounter:
        """Made when it is needed first: it probes the template."""
        if self._counter is None:
            self._counter = TokenCounter(self._template(), self._engine.tokenizer)
        return self._counter

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
        self._inserts.forget(salt)

    def forget_key(self, salt: bytes, key: str) -> None:
        """Drops what is remembered under one cache key."""
        self._replies.forget_key(salt, key)
        self._inserts.forget_key(salt, key)
