"""The fields that chats and text completions have in common: how tokens are chosen, and when a reply ends."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from duologue.api.body import invalid_field
from duologue.api.cache_fields import CacheFields
from duologue.api.structure import StructuredOutputs
from duologue.dialogue.grammar import Grammar
from duologue.engine.sampling_params import MAX_LOGIT_BIASES, MAX_STOP_TOKEN_IDS, SamplingParams
from duologue.errors import InvalidRequestError

MAX_CHOICES = 128
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20
SEED_LIMIT = 2**63
_ID_LIMIT = 2**31

Tokens = Annotated[int, Field(ge=1, lt=_ID_LIMIT)]
_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
_STOP_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]


def _stop_list(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class StreamOptions(BaseModel):
    """`include_obfuscation` is accepted and has no effect: it pads chunks and changes no text."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool = False
    include_obfuscation: bool = False


class SamplingFields(CacheFields):
    """Extensions, under vLLM's names: `top_k` and `min_p` (0 is off), `repetition_penalty` (1 is off), `stop_token_ids`,
    `min_tokens`, `ignore_eos`, `structured_outputs`."""

    model: Annotated[str, Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=_ID_LIMIT)] = 0
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 1.0
    logit_bias: Annotated[
        dict[_TokenKey, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]],
        Field(max_length=MAX_LOGIT_BIASES),
        WithJsonSchema(
            {
                "type": "object",
                "maxProperties": MAX_LOGIT_BIASES,
                "patternProperties": {"^[0-9]{1,10}$": {"type": "number", "minimum": -100, "maximum": 100}},
                "additionalProperties": False,
            }
        ),
    ] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=-SEED_LIMIT, lt=SEED_LIMIT)] | None = None
    max_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=_ID_LIMIT)] = 0
    stop: Annotated[
        list[_Stop],
        BeforeValidator(_stop_list),
        Field(max_length=MAX_STOP_STRINGS),
        WithJsonSchema(
            {"anyOf": [_STOP_SCHEMA, {"type": "array", "items": _STOP_SCHEMA, "maxItems": MAX_STOP_STRINGS}]}
        ),
    ] = Field(default_factory=list)
    stop_token_ids: Annotated[
        list[Annotated[int, Field(ge=0, lt=_ID_LIMIT)]], Field(max_length=MAX_STOP_TOKEN_IDS)
    ] = Field(default_factory=list)
    ignore_eos: bool = False
    structured_outputs: StructuredOutputs | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def engine_params(
        self, *, max_tokens: int | None, logprobs: int | None, grammar: Grammar | None
    ) -> SamplingParams:
        """The engine's view of the request.

        OpenAI allows `top_p` 0, which leaves one token, and negative seeds; the engine knows neither.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p or 1.0,
            top_k=max(self.top_k, 0) if self.top_p > 0 else 1,  # vLLM's clients send -1 for off
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple({int(token): bias for token, bias in self.logit_bias.items()}.items()),
            seed=None if self.seed is None else self.seed % 2**64,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            grammar=grammar,
        )


_Request = TypeVar("_Request", bound=BaseModel)


def checked(kind: type[_Request], fields: dict[str, Any]) -> _Request:
    """The request, or `InvalidRequestError` that names the first wrong field."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        # The first error suffices, and only it can be named by `param`.
        raise invalid_field(error.errors(include_url=False)[0]) from None


def contradiction(param: str, message: str) -> InvalidRequestError:
    """The error for fields that are right by themselves and not together."""
    return InvalidRequestError(message, param=param, code="invalid_value")


def refuse_contradictions(request: SamplingFields, max_tokens: int | None) -> None:
    """Raises `InvalidRequestError` for fields of `SamplingFields` that exclude each other."""
    if request.stream_options is not None and not request.stream:
        raise contradiction("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    if max_tokens is not None and request.min_tokens > max_tokens:
        raise contradiction("min_tokens", "'min_tokens' is larger than the largest number of tokens.")
