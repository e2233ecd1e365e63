"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from duologue.api.tokenization import (
    TokenizeRequest,
    parse_detokenize_request,
    parse_tokenize_request,
    tokens_object,
)
from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.splice import encode_dialogue
from duologue.errors import InvalidRequestError
from duologue.server.endpoint import parsed
from duologue.server.json_endpoint import JsonEndpoint

if TYPE_CHECKING:
    from duologue.engine.engine import Engine
    from duologue.server.models import ServedModel

# What takes about a millisecond on the event loop; more of it goes to a thread.
_INLINE_DECODE_TOKENS = 2048


class Tokenize(JsonEndpoint):
    """Texts and messages to ids, as the completions make them, but for replies that are known as ids."""

    async def _answer(self, body: bytes, tenant: str) -> dict[str, Any]:
        request = await parsed(parse_tokenize_request, body)
        model = self._models.named(request.model)
        if request.prompt is not None:
            tokens = await model.prompts.encode_text(request.prompt, add_bos=request.add_special_tokens)
        else:
            loop = asyncio.get_running_loop()
            tokens = await loop.run_in_executor(None, _encode_messages, model, request)
        tokenizer = model.engine.tokenizer
        spellings = None
        if request.return_token_strs:
            spellings = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens]
        return tokens_object(tokens, model.engine.context_tokens, spellings)


def _encode_messages(model: ServedModel, request: TokenizeRequest) -> list[int]:
    engine, given = model.engine, request.messages or []
    if request.tools or any(message.uses_tools for message in given):
        model.require_tools()
    messages = [message.template_dict() for message in given]
    model.prompts.refuse_hopeless(given, request.tools)
    tools = [tool.template_dict() for tool in request.tools] or None
    if request.continue_final_message:
        pieces = PieceEncoder(engine.tokenizer)
        chat = encode_dialogue(engine.template, pieces, messages, tools=tools, continue_final_message=True)
        ids: list[int] = chat.ids.tolist()
        return ids
    return engine.template.encode_chat(engine.tokenizer, messages, request.add_generation_prompt, tools)


class Detokenize(JsonEndpoint):
    """Ids to text."""

    async def _answer(self, body: bytes, tenant: str) -> dict[str, Any]:
        request = await parsed(parse_detokenize_request, body)
        model = self._models.named(request.model)
        _refuse_tokens(request.tokens, model.engine)
        if len(request.tokens) <= _INLINE_DECODE_TOKENS:
            return _decoded(model.engine, request.tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, _decoded, model.engine, request.tokens)


def _decoded(engine: Engine, tokens: list[int]) -> dict[str, Any]:
    return {"prompt": engine.tokenizer.decode(tokens, skip_special=False)}


def _refuse_tokens(tokens: list[int], engine: Engine) -> None:
    if len(tokens) > engine.context_tokens:
        raise InvalidRequestError(
            f"'tokens' has {len(tokens)} ids, but the context has {engine.context_tokens}; send fewer",
            param="tokens",
            code="context_length_exceeded",
        )
    vocab_size = engine.spec.vocab_size
    if tokens and max(tokens) >= vocab_size:
        place = next(place for place, token in enumerate(tokens) if token >= vocab_size)
        raise InvalidRequestError(
            f"'tokens[{place}]' is {tokens[place]}, but this model has the ids 0 to {vocab_size - 1}",
            param=f"tokens[{place}]",
            code="invalid_value",
        )
