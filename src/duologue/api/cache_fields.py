"""What a request may say about the cache: under which name its KV goes, with whom it is shared, how long it should stay."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from duologue.api.salts import cache_salt
from duologue.cache.scope import CacheScope

MAX_CACHE_KEY_CHARS = 1024
MAX_CACHE_SALT_CHARS = 1024
MAX_RETENTION_S = 3600.0
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def cache_key_fault(key: str) -> str | None:
    """Why `key` cannot be a cache key, or None when it can: 1 to 1,024 characters, none of them a control character."""
    if not key:
        return "it is empty"
    if len(key) > MAX_CACHE_KEY_CHARS:
        return f"it has {len(key):,} characters; at most {MAX_CACHE_KEY_CHARS:,} are allowed"
    if _CONTROL.search(key):
        return "it holds control characters; use a readable name, such as an id or a hash in hex"
    return None


def _printable(key: str) -> str:
    if _CONTROL.search(key):
        raise PydanticCustomError("invalid_value", "{fault}", {"fault": cache_key_fault(key)})
    return key


class CacheFields(BaseModel):
    """`prompt_cache_key` is OpenAI's, `cache_salt` vLLM's; `cache_retention_s` is an extension."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    prompt_cache_key: (
        Annotated[str, Field(min_length=1, max_length=MAX_CACHE_KEY_CHARS), AfterValidator(_printable)] | None
    ) = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None = None
    cache_retention_s: Annotated[float, Field(ge=0, le=MAX_RETENTION_S, allow_inf_nan=False)] = 0.0

    def cache_scope(self, tenant: str) -> CacheScope:
        """Where the request's KV belongs, `tenant` being who has been authenticated."""
        return CacheScope(
            tenant=tenant,
            salt=cache_salt(tenant, self.cache_salt),
            key=self.prompt_cache_key,
            retention_s=self.cache_retention_s,
        )
