"""The objects of `/v1/cache`: what a lookup found and what a deletion forgot; and the key in a path."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes

from duologue.api.cache_fields import cache_key_fault
from duologue.errors import InvalidRequestError


def key_in_path(raw: bytes) -> str:
    """The cache key that a percent-encoded piece of a path spells. Raises `InvalidRequestError`."""
    try:
        key = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        fault: str | None = "it is not UTF-8"
    else:
        fault = cache_key_fault(key)
        if fault is None:
            return key
    raise InvalidRequestError(
        f"The cache key in the URL is not valid: {fault}.", param="key", code="invalid_value"
    )


def lookup_object(model: str, prompt_tokens: int, matched_tokens: int, page_tokens: int) -> dict[str, Any]:
    """What `POST /v1/cache/lookup` answers."""
    return {
        "object": "cache.lookup",
        "model": model,
        "prompt_tokens": prompt_tokens,
        "matched_tokens": matched_tokens,
        "matched_tokens_details": {"memory": matched_tokens},
        "page_tokens": page_tokens,
    }


def deletion_object(key: str | None, pages: int, tokens: int) -> dict[str, Any]:
    """What a `DELETE` answers: how much KV is gone. `key` is None when all of the tenant's was deleted."""
    return {"object": "cache.deleted", "key": key, "deleted": True, "pages": pages, "tokens": tokens}
