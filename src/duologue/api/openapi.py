"""The OpenAPI document: made from the classes that check requests, so that it says what they do.

Pydantic describes a field as it is after validation; here a null counts as an absent field and some fields are
accepted without effect, which is added. What JSON Schema cannot say (which fields exclude each other, what fits
into the context) is in the 400 of each operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel

import duologue
from duologue.api.chat import ChatCompletionRequest
from duologue.api.openapi_replies import TEXT, Schema, ref, reply_schemas
from duologue.api.structure import OLDER_SPELLINGS
from duologue.api.text import TextCompletionRequest
from duologue.api.tokenization import DetokenizeRequest, TokenizeRequest
from duologue.api.unsupported import CHAT_FIELDS, HARMLESS, TEXT_FIELDS, NeutralValues

_NO_EFFECT = {"description": "Accepted without effect."}


def openapi_document(models: Sequence[str]) -> Schema:
    """The document of a server with these models (OpenAPI 3.1)."""
    schemas: dict[str, Schema] = {}
    for kind, refused in (
        (ChatCompletionRequest, CHAT_FIELDS),
        (TextCompletionRequest, TEXT_FIELDS),
        (TokenizeRequest, {}),
        (DetokenizeRequest, {}),
    ):
        schemas |= _request_schemas(kind, refused, models)
    schemas |= reply_schemas()
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
    kind: type[BaseModel], refused: NeutralValues, models: Sequence[str]
) -> dict[str, Schema]:
    schema = kind.model_json_schema(ref_template=ref("{model}")["$ref"], by_alias=True)
    parts: dict[str, Schema] = schema.pop("$defs", {})
    properties: dict[str, Schema] = schema["properties"]
    required = schema.get("required", [])
    properties["model"] = {"type": "string", "enum": list(models)}
    for name, described in properties.items():
        described.pop("title", None)
        described.pop("default", None)
        if name not in required and {"type": "null"} not in described.get("anyOf", ()):
            properties[name] = {"anyOf": [described, {"type": "null"}]}
    properties |= dict.fromkeys(sorted(HARMLESS), _NO_EFFECT)
    properties |= {name: {"enum": [None, *values], **_NO_EFFECT} for name, values in refused.items()}
    if "structured_outputs" in properties:
        current = parts["StructuredOutputs"]["properties"]
        properties |= {older: current[name] for older, name in OLDER_SPELLINGS.items()}
    if kind is TextCompletionRequest:
        properties["best_of"] = {"type": ["integer", "null"], "description": "As many as `n`."}
    if "ChatMessage" in parts:
        _take_replies(parts["ChatMessage"])
    return {**parts, kind.__name__: schema}


def _take_replies(message: Schema) -> None:
    """Adds what a reply has that is sent back whole."""
    null: Schema = {"type": "null"}
    properties: dict[str, Schema] = message["properties"]
    properties["content"] = {"anyOf": [properties["content"], null]}
    properties |= {"refusal": _NO_EFFECT, "annotations": _NO_EFFECT, "audio": null, "function_call": null}
    message["required"] = ["role"]
    has_text = {"properties": {"content": {"type": ["string", "array"]}}, "required": ["content"]}
    calls = {"role": {"const": "assistant"}, "tool_calls": {"type": "array", "minItems": 1}}
    message["anyOf"] = [has_text, {"properties": calls, "required": ["tool_calls"]}]


_ERRORS = {
    400: "The request is wrong; `param` names the field",
    401: "No valid API key",
    403: "Not this machine's name, or another page's script, on a server without keys",
    404: "An unknown model",
    413: "The body is too large",
    429: "The queue is full, or the wait was too long",
    500: "A defect",
    503: "Shutting down or stopped",
}


def _answer(schema: str, description: str, *, stream: bool = False) -> Schema:
    content: Schema = {"application/json": {"schema": ref(schema)}}
    if stream:
        content["text/event-stream"] = {"schema": {"description": "One event: a chunk, or [DONE] at the end"}}
    return {"description": description, "content": content}


def _operation(
    summary: str,
    answer: Schema,
    *errors: int,
    body: str | None = None,
    parameters: Sequence[Schema] = (),
    open_to_all: bool = False,
) -> Schema:
    operation: Schema = {
        "summary": summary,
        "responses": {
            "200": answer,
            **{str(status): _answer("Error", _ERRORS[status]) for status in (*errors, 403)},
        },
    }
    if body is not None:
        content = {"application/json": {"schema": ref(body)}}
        operation["requestBody"] = {"required": True, "content": content}
    if parameters:
        operation["parameters"] = list(parameters)
    if open_to_all:
        operation["security"] = []
    return operation


def _paths(models: Sequence[str]) -> Schema:
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
    exposition = {"description": "Metrics", "content": {"text/plain": {"schema": TEXT}}}
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
                parameters=[{"name": "model", **in_path, "schema": TEXT}],
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
