"""JSON Schemas of what the API answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any, TypeAlias

Schema: TypeAlias = "dict[str, Any]"
TEXT: Schema = {"type": "string"}
_REF = "#/components/schemas/"


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Schema:
    """A reference to one of the document's schemas."""
    return {"$ref": _REF + name}


_COUNT: Schema = {"type": "integer", "minimum": 0}
_REASONS: Schema = {"enum": ["stop", "length", "tool_calls"]}


def reply_schemas() -> dict[str, Schema]:
    """All by name."""
    usage = _object(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_object(cached_tokens=_COUNT, cached_tokens_details=_object(memory=_COUNT)),
    )
    call = _object(id=TEXT, type={"const": "function"}, function=_object(name=TEXT, arguments=TEXT))
    message = _object(role={"const": "assistant"}, content=_or_null(TEXT), refusal={"type": "null"})
    message["properties"]["tool_calls"] = _array(call)
    logprob = _object(token=TEXT, logprob={"type": "number"}, bytes=_array(_COUNT))
    choice_logprobs = _object(
        content=_array({"allOf": [logprob, _object(top_logprobs=_array(logprob))]}), refusal={"type": "null"}
    )
    text_logprobs = _object(
        tokens=_array(TEXT),
        token_logprobs=_array({"type": "number"}),
        top_logprobs=_array({"type": "object", "additionalProperties": {"type": "number"}}),
        text_offset=_array(_COUNT),
    )
    header = {"id": TEXT, "created": _COUNT, "model": TEXT, "usage": ref("Usage")}
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
            _object(index=_COUNT, text=TEXT, logprobs=_or_null(text_logprobs), finish_reason=_REASONS)
        ),
        **header,
    )
    model = _object(id=TEXT, object={"const": "model"}, created=_COUNT, owned_by=TEXT, context_tokens=_COUNT)
    return {
        "Usage": usage,
        "ChatCompletion": chat,
        "TextCompletion": text,
        "Model": model,
        "ModelList": _object(object={"const": "list"}, data=_array(ref("Model"))),
        "Tokens": _object(
            count=_COUNT, max_model_len=_COUNT, tokens=_array(_COUNT), token_strs=_or_null(_array(TEXT))
        ),
        "Text": _object(prompt=TEXT),
        "CacheLookup": _object(
            object={"const": "cache.lookup"},
            model=TEXT,
            prompt_tokens=_COUNT,
            matched_tokens=_COUNT,
            matched_tokens_details=_object(memory=_COUNT),
            page_tokens=_COUNT,
        ),
        "CacheDeletion": _object(
            object={"const": "cache.deleted"},
            key=_or_null(TEXT),
            deleted={"const": True},
            pages=_COUNT,
            tokens=_COUNT,
        ),
        "Status": _object(status=TEXT),
        "Error": _object(error=_object(message=TEXT, type=TEXT, param=_or_null(TEXT), code=_or_null(TEXT))),
    }
