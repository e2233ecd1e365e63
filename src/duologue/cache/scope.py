"""Who may share KV with whom, and under which name it can be forgotten."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheScope:
    """Where a request's KV belongs.

    `salt` is part of every cache key: requests with different salts share nothing. It already holds the tenant and what the
    client asked for (`api.salts`). `tenant` names whose it is, for forgetting and accounting. `key` is the dialogue's
    `prompt_cache_key`. `retention_s` is a head start against eviction in seconds, as if it had been used that much later; beyond
    a quarter of the pages a tenant gets none.
    """

    tenant: str = ""
    salt: bytes = b""
    key: str | None = None
    retention_s: float = 0.0


DEFAULT_SCOPE = CacheScope()
