"""The request of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from duologue.api.body import json_object
from duologue.api.sampling_fields import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    SamplingFields,
    checked,
    contradiction,
    refuse_contradictions,
)
from duologue.api.structure import with_structured_outputs
from duologue.api.unsupported import TEXT_FIELDS, implemented_fields
from duologue.engine.sampling_params import SamplingParams
from duologue.errors import InvalidRequestError

DEFAULT_MAX_TOKENS = 16
TextPrompt = str | tuple[int, ...]
_IDS_SCHEMA = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": MAX_CHOICES,
            "items": {"type": "string", "minLength": 1},
        },
        _IDS_SCHEMA,
        {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": _IDS_SCHEMA},
    ]
}


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _prompts(value: Any) -> tuple[TextPrompt, ...]:
    """All spellings of a prompt as a list of prompts."""
    prompts = value if isinstance(value, list) else [value]
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        prompts = [value]
    if not prompts:
        raise PydanticCustomError("too_short", "it is empty")
    if len(prompts) > MAX_CHOICES:
        raise PydanticCustomError(
            "too_long",
            "it holds {count} prompts; at most {most} are allowed",
            {"count": len(prompts), "most": MAX_CHOICES},
        )
    made: list[TextPrompt] = []
    for prompt in prompts:
        if isinstance(prompt, str) and prompt and isinstance(prompts[0], str):
            made.append(prompt)
        elif (
            isinstance(prompt, list) and prompt and all(map(_is_id, prompt)) and isinstance(prompts[0], list)
        ):
            made.append(tuple(prompt))
        else:
            raise PydanticCustomError(
                "invalid_type",
                "it must be a text, a list of texts, of token ids, or of such lists, none empty",
            )
    return tuple(made)


class TextCompletionRequest(SamplingFields):
    """The implemented fields; extensions as in `SamplingFields`."""

    prompt: Annotated[tuple[TextPrompt, ...], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def structure_param(self) -> str:
        """The field that says what the reply looks like."""
        return "structured_outputs"

    def sampling_params(self) -> SamplingParams:
        """The engine's view of the request. Raises `InvalidRequestError`."""
        return self.engine_params(
            max_tokens=DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens,
            logprobs=self.logprobs,
            grammar=None if self.structured_outputs is None else self.structured_outputs.as_grammar(),
        )


def parse_text_request(body: bytes) -> TextCompletionRequest:
    """Checks a request body. Raises `InvalidRequestError` that names the first wrong field (`param`)."""
    fields = json_object(body)
    best_of = fields.pop("best_of", None)
    request = checked(TextCompletionRequest, with_structured_outputs(implemented_fields(fields, TEXT_FIELDS)))
    if best_of is not None and (type(best_of) is not int or best_of != request.n):
        raise InvalidRequestError(
            "Unsupported parameter: 'best_of' is only supported when it equals 'n'; leave it out.",
            param="best_of",
            code="unsupported_parameter",
        )
    refuse_contradictions(request, DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens)
    if request.n * len(request.prompt) > MAX_CHOICES:
        raise contradiction("n", f"'n' times the number of prompts is more than {MAX_CHOICES} choices.")
    if request.echo and request.logprobs is not None:
        raise contradiction("echo", "'echo' is not supported with 'logprobs': prompts have none here.")
    return request
