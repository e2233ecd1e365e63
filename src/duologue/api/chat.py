"""The request of `POST /v1/chat/completions`: schema, limits, and the way from bytes to a checked object."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from duologue.api.body import invalid_field, json_object
from duologue.api.cache_fields import CacheFields
from duologue.api.unsupported import implemented_fields
from duologue.engine.sampling_params import SamplingParams
from duologue.errors import InvalidRequestError

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
_SEED_LIMIT = 2**63

_Strict = ConfigDict(strict=True, extra="forbid", frozen=True)


def _text(content: Any) -> Any:
    """One string out of a string or a list of text parts (joined by newlines, as most servers do)."""
    if not isinstance(content, list):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "refusal":
            kind, part = "text", {"text": part.get("refusal")}
        if kind != "text":
            found = f"type '{kind}'" if isinstance(kind, str) else "no type"
            raise PydanticCustomError(
                "unsupported_value",
                "part {index} has {found}, but only text parts are supported",
                {"index": index, "found": found},
            )
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("invalid_type", "part {index} has no string 'text'", {"index": index})
        texts.append(part["text"])
    return "\n".join(texts)


def _stop_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class ChatMessage(BaseModel):
    """One message. `developer` is OpenAI's newer word for `system` and reaches the template as such."""

    model_config = _Strict

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, message: Any) -> Any:
        """Replies may be sent back whole, so their empty members (`refusal`, `tool_calls`) are dropped."""
        if not isinstance(message, dict):
            return message
        if message.get("role") in ("tool", "function"):
            raise PydanticCustomError("unsupported_value", "messages of role 'tool' are not supported")
        for name in ("tool_calls", "function_call", "audio"):
            if message.get(name):
                raise PydanticCustomError("unsupported_value", "'{name}' is not supported", {"name": name})
        ignored = ("refusal", "annotations", "tool_calls", "function_call", "audio")
        return {name: value for name, value in message.items() if name not in ignored}

    def template_dict(self) -> dict[str, str]:
        """The message as chat templates expect it."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        if self.name is not None:
            message["name"] = self.name
        return message


class StreamOptions(BaseModel):
    """`include_obfuscation` is accepted and has no effect: it pads chunks and changes no text."""

    model_config = _Strict

    include_usage: bool = False
    include_obfuscation: bool = False


class ChatCompletionRequest(CacheFields):
    """The implemented fields. `top_k` (0 is off) and `ignore_eos` are extensions."""

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=0, lt=2**31)] = 0
    seed: Annotated[int, Field(ge=-_SEED_LIMIT, lt=_SEED_LIMIT)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
        BeforeValidator(_stop_list),
        Field(max_length=MAX_STOP_STRINGS),
    ] = Field(default_factory=list)
    ignore_eos: bool = False

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def template_messages(self) -> list[dict[str, str]]:
        """The messages as chat templates expect them."""
        return [message.template_dict() for message in self.messages]

    def sampling_params(self) -> SamplingParams:
        """The engine's view of the request.

        OpenAI allows `top_p` 0, which leaves one token, and negative seeds; the engine knows neither.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p or 1.0,
            top_k=self.top_k if self.top_p > 0 else 1,
            seed=None if self.seed is None else self.seed % 2**64,
            max_tokens=self.max_completion_tokens if self.max_tokens is None else self.max_tokens,
            stop=tuple(self.stop),
            ignore_eos=self.ignore_eos,
        )


def parse_chat_request(body: bytes) -> ChatCompletionRequest:
    """Checks a request body. Raises `InvalidRequestError` that names the first wrong field (`param`)."""
    fields = json_object(body)
    try:
        request = ChatCompletionRequest.model_validate(implemented_fields(fields))
    except ValidationError as error:
        # The first error suffices, and only it can be named by `param`.
        raise invalid_field(error.errors(include_url=False)[0]) from None
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError(
            "'stream_options' is only allowed when 'stream' is true.",
            param="stream_options",
            code="invalid_value",
        )
    limits = (request.max_tokens, request.max_completion_tokens)
    if None not in limits and limits[0] != limits[1]:
        raise InvalidRequestError(
            "'max_tokens' and 'max_completion_tokens' differ; send only 'max_completion_tokens'.",
            param="max_tokens",
            code="invalid_value",
        )
    return request
