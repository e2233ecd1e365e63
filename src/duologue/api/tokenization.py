"""The requests and answers of `/tokenize` and `/detokenize`, in vLLM's shapes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from duologue.api.body import json_object
from duologue.api.messages import MAX_MESSAGES, ChatMessage
from duologue.api.sampling_fields import checked, contradiction
from duologue.api.tools import MAX_TOOLS, Tool
from duologue.api.unsupported import implemented_fields

_Strict = ConfigDict(strict=True, extra="forbid", frozen=True)


class TokenizeRequest(BaseModel):
    """`prompt` or `messages`, not both. `add_special_tokens` is for prompts (a template writes its own)."""

    model_config = _Strict

    model: Annotated[str, Field(min_length=1)] | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    """Control tokens are spelled out in the answer."""

    model_config = _Strict

    model: Annotated[str, Field(min_length=1)] | None = None
    tokens: list[Annotated[int, Field(ge=0, lt=2**31)]]


def parse_tokenize_request(body: bytes) -> TokenizeRequest:
    """Raises `InvalidRequestError` that names the first wrong field (`param`)."""
    request = checked(TokenizeRequest, implemented_fields(json_object(body), {}))
    if (request.prompt is None) == (request.messages is None):
        raise contradiction("prompt", "Send either 'prompt' or 'messages'.")
    if request.tools and request.messages is None:
        raise contradiction("tools", "'tools' is only allowed with 'messages'.")
    if request.continue_final_message and (
        request.messages is None or request.messages[-1].role != "assistant"
    ):
        raise contradiction(
            "continue_final_message", "'continue_final_message' needs a last message of the assistant."
        )
    return request


def parse_detokenize_request(body: bytes) -> DetokenizeRequest:
    """Raises `InvalidRequestError` that names the first wrong field (`param`)."""
    return checked(DetokenizeRequest, implemented_fields(json_object(body), {}))


def tokens_object(tokens: list[int], context_tokens: int, token_strs: list[str] | None) -> dict[str, Any]:
    """What `/tokenize` answers."""
    return {
        "count": len(tokens),
        "max_model_len": context_tokens,
        "tokens": tokens,
        "token_strs": token_strs,
    }
