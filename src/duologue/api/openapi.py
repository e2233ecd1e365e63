"""The OpenAPI document: made from the classes that check requests, so that it says what they do.

Pydantic describes a field as it is after validation; here a null counts as an absent field and some fields are
accepted without effect, which is added. What JSON Schema cannot say (which fields exclude each other, what fits
into the context) is in the 400 of each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

import duologue
from duologue.api.chat import ChatCompletionRequest
from duologue.api.text import TextCompletionRequest
from duologue.api.tokenization import DetokenizeRequest, TokenizeRequest
from duologue.api.unsupported import CHAT_FIELDS, HARMLESS, TEXT_FIELDS

_Schema = dict[str, Any]
_REF = "#/components/schemas/"
_NO_EFFECT = {"description": "Accepted without effect."}
# The values that ask for nothing, of fields that are not implemented.
_NEUTRAL = {
    "audio": [None, False, [], {}],
    "function_call": [None, "none", "auto"],
    "functions": [None, False, [], {}],
    "modalities": [None, ["text"]],
    "reasoning_effort": [None, "none"],
    "verbosity": [None, False, [], {}],
    "web_search_options": [None],
    "suffix": [None, ""],
    "early_stopping": [None, False, [], {}],
    "include_stop_str_in_output": [None, False, [], {}],
    "length_penalty": [None, 1],
    "skip_special_tokens": [None, True],
    "spaces_between_special_tokens": [None, True, False],
    "use_beam_search": [None, False, [], {}],
}


def openapi_document(models: Sequence[str]) -> _Schema:
    """The document of a server with these models (OpenAPI 3.1)."""
    schemas: dict[str, _Schema] = {}
    for kind, refused in (
        (ChatCompletionRequest, CHAT_FIELDS),
        (TextCompletionRequest, TEXT_FIELDS),
        (TokenizeRequest, {}),
        (DetokenizeRequest, {}),
    ):
        schemas |= _request_schemas(kind, refused, models)
    schemas |= _reply_schemas()
    return {
        "openapi": "3.1.0",
        "info": {"title": "duologue", "version": duologue.__version__},
        "security": [{}, {"key": []}],
        "paths": _paths(models),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _request_schemas(
    kind: type[BaseModel], refused: Mapping[str, Callable[[Any], bool]], models: Sequence[str]
) -> dict[str, _Schema]:
    schema = kind.model_json_schema(ref_template=_REF + "{model}", by_alias=True)
    parts: dict[str, _Schema] = schema.pop("$defs", {})
    properties: dict[str, _Schema] = schema["properties"]
    required = schema.get("required", [])
    properties["model"] = {"type": "string", "enum": list(models)}
    for name, described in properties.items():
        described.pop("title", None)
        described.pop("default", None)
        if name not in required and {"type": "null"} not in described.get("anyOf", ()):
            properties[name] = {"anyOf": [described, {"type": "null"}]}
    properties |= dict.fromkeys(sorted(HARMLESS), _NO_EFFECT)
    properties |= {name: {"enum": _NEUTRAL[name], **_NO_EFFECT} for name in refused}
    return {**parts, kind.__name__: schema}


def _object(**properties: _Schema) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> _Schema:
    return {"$ref": _REF + name}


_TEXT: _Schema = {"type": "string"}
_COUNT: _Schema = {"type": "integer", "minimum": 0}
_REASONS: _Schema = {"enum": ["stop", "length", "tool_calls"]}


def _reply_schemas() -> dict[str, _Schema]:
    usage = _object(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object(cached_tokens=_COUNT, cached_tokens_details=_object(memory=_COUNT)),
    )
    call = _object(id=_TEXT, type={"const": "function"}, function=_object(name=_TEXT, arguments=_TEXT))
    message = _object(role={"const": "assistant"}, content=_or_null(_TEXT), refusal={"type": "null"})
    message["properties"]["tool_calls"] = _array(call)
    logprob = _object(token=_TEXT, logprob={"type": "number"}, bytes=_array(_COUNT))
    choice_logprobs = _object(
        content=_array({"allOf": [logprob, _object(top_logprobs=_array(logprob))]}), refusal={"type": "null"}
    )
    text_logprobs = _object(
        tokens=_array(_TEXT),
        token_logprobs=_array({"type": "number"}),
        top_logprobs=_array({"type": "object", "additionalProperties": {"type": "number"}}),
        text_offset=_array(_COUNT),
    )
    header = {"id": _TEXT, "created": _COUNT, "model": _TEXT, "usage": _ref("Usage")}
    chat = _object(
        object={"const": "chat.completion"},
        choices=_array(
            _object(index=_COUNT, message=message, logprobs=_or_null(choice_logprobs), finish_reason=_REASONS)
        ),
        **header,
    )
    chat["properties"]["cache_report"] = {"type": "object"}
    text = _object(
        object={"const": "text_completion"},
        choices=_array(
            _object(index=_COUNT, text=_TEXT, logprobs=_or_null(text_logprobs), finish_reason=_REASONS)
        ),
        **header,
    )
    model = _object(
        id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT, context_tokens=_COUNT
    )
    return {
        "Usage": usage,
        "ChatCompletion": chat,
        "TextCompletion": text,
        "Model": model,
        "ModelList": _object(object={"const": "list"}, data=_array(_ref("Model"))),
        "Tokens": _object(
            count=_COUNT, max_model_len=_COUNT, tokens=_array(_COUNT), token_strs=_or_null(_array(_TEXT))
        ),
        "Text": _object(prompt=_TEXT),
        "CacheLookup": _object(
            object={"const": "cache.lookup"},
            model=_TEXT,
            prompt_tokens=_COUNT,
            matched_tokens=_COUNT,
            matched_tokens_details=_object(memory=_COUNT),
            page_tokens=_COUNT,
        ),
        "CacheDeletion": _object(
            object={"const": "cache.deleted"},
            key=_or_null(_TEXT),
            deleted={"const": True},
            pages=_COUNT,
            tokens=_COUNT,
        ),
        "Status": _object(status=_TEXT),
        "Error": _object(
            error=_object(message=_TEXT, type=_TEXT, param=_or_null(_TEXT), code=_or_null(_TEXT))
        ),
    }


_ERRORS = {
    400: "The request is wrong; `param` names the field",
    401: "No valid API key",
    404: "An unknown model",
    413: "The body is too large",
    429: "The queue is full, or the wait was too long",
    500: "A defect",
    503: "Shutting down or stopped",
}


def _answer(schema: str, description: str, *, stream: bool = False) -> _Schema:
    content: _Schema = {"application/json": {"schema": _ref(schema)}}
    if stream:
        content["text/event-stream"] = {"schema": {"description": "One event: a chunk, or [DONE] at the end"}}
    return {"description": description, "content": content}


def _operation(
    summary: str,
    answer: _Schema,
    *errors: int,
    body: str | None = None,
    parameters: Sequence[_Schema] = (),
    open_to_all: bool = False,
) -> _Schema:
    operation: _Schema = {
        "summary": summary,
        "responses": {
            "200": answer,
            **{str(status): _answer("Error", _ERRORS[status]) for status in errors},
        },
    }
    if body is not None:
        content = {"application/json": {"schema": _ref(body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if parameters:
        operation["parameters"] = list(parameters)
    if open_to_all:
        operation["security"] = []
    return operation


def _paths(models: Sequence[str]) -> _Schema:
    taking = (400, 401, 404, 413, 500)
    generating = (*taking, 429, 503)
    in_path = {"in": "path", "required": True}
    key = {
        "name": "key",
        **in_path,
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1024,
            "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$",
        },
    }
    of_model = {"name": "model", "in": "query", "schema": {"enum": list(models)}}
    status = _answer("Status", "Yes")
    down = {"503": _answer("Status", "No")}
    probes = {
        path: {"get": _operation(summary, status, open_to_all=True)}
        for path, summary in (
            ("/health", "Whether the engines run"),
            ("/ready", "Whether requests are welcome"),
        )
    }
    for probe in probes.values():
        probe["get"]["responses"] |= down
    exposition = {"description": "Metrics", "content": {"text/plain": {"schema": _TEXT}}}
    document = {"description": "This", "content": {"application/json": {"schema": {"type": "object"}}}}
    return {
        "/v1/chat/completions": {
            "post": _operation(
                "A reply to messages",
                _answer("ChatCompletion", "The reply, or a stream of its chunks", stream=True),
                *generating,
                body="ChatCompletionRequest",
            )
        },
        "/v1/completions": {
            "post": _operation(
                "A continuation of text",
                _answer("TextCompletion", "The text, or a stream of its chunks", stream=True),
                *generating,
                body="TextCompletionRequest",
            )
        },
        "/tokenize": {
            "post": _operation("Text to ids", _answer("Tokens", "Ids"), *taking, body="TokenizeRequest")
        },
        "/detokenize": {
            "post": _operation("Ids to text", _answer("Text", "Text"), *taking, body="DetokenizeRequest")
        },
        "/v1/models": {"get": _operation("All models", _answer("ModelList", "Models"), 401)},
        "/v1/models/{model}": {
            "get": _operation(
                "One model",
                _answer("Model", "The model"),
                401,
                404,
                parameters=[{"name": "model", **in_path, "schema": _TEXT}],
            )
        },
        "/v1/cache/lookup": {
            "post": _operation(
                "How much of a chat's prompt is stored",
                _answer("CacheLookup", "What was found"),
                *taking,
                body="ChatCompletionRequest",
            )
        },
        "/v1/cache": {
            "delete": _operation(
                "Forget all of the caller's KV",
                _answer("CacheDeletion", "What is gone"),
                401,
                404,
                parameters=[of_model],
            )
        },
        "/v1/cache/{key}": {
            "delete": _operation(
                "Forget what was stored under a key",
                _answer("CacheDeletion", "What is gone"),
                400,
                401,
                404,
                parameters=[key, of_model],
            )
        },
        **probes,
        "/metrics": {"get": _operation("Prometheus", exposition, open_to_all=True)},
        "/openapi.json": {"get": _operation("This document", document, open_to_all=True)},
    }
