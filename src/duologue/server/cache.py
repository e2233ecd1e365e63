"""`/v1/cache`: what is stored of a prompt, and forgetting it. Every tenant sees and forgets its own only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duologue.api.cache import deletion_object, key_in_path, lookup_object
from duologue.api.errors import error_response
from duologue.errors import DuologueError
from duologue.kernels import PAGE_TOKENS
from duologue.server.access import tenant_of
from duologue.server.http import ClientDisconnected, read_body, send_error, send_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from duologue.server.metrics import Metrics
    from duologue.server.prompts import Prompts
    from duologue.server.tenant_cache import TenantCache

CACHE_PATH = "/v1/cache"


class CacheLookup:
    """`POST /v1/cache/lookup`: takes the body of a chat completion and runs nothing."""

    def __init__(self, prompts: Prompts, cache: TenantCache, metrics: Metrics, max_body_bytes: int) -> None:
        self._prompts = prompts
        self._cache = cache
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = await self._prompts.parse(await read_body(scope, receive, self._max_body_bytes))
            cache_scope = request.cache_scope(tenant_of(scope))
            prompt = await self._prompts.encode(request, cache_scope)
            matched_tokens = self._cache.matched_tokens(prompt, cache_scope)
        except ClientDisconnected:
            return
        except DuologueError as error:
            await send_error(send, error_response(error))
            return
        self._metrics.lookups.inc()
        answer = lookup_object(request.model, len(prompt.ids), matched_tokens, page_tokens=PAGE_TOKENS)
        await send_json(send, answer)


class CacheDeletion:
    """`DELETE /v1/cache/{key}` and, with `whole_tenant`, `DELETE /v1/cache`."""

    def __init__(self, cache: TenantCache, metrics: Metrics, *, whole_tenant: bool) -> None:
        self._cache = cache
        self._metrics = metrics
        self._whole_tenant = whole_tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: str | None = None
        try:
            if not self._whole_tenant:
                # The path that the router sees has been decoded, and what is not UTF-8 has been replaced there.
                raw: bytes = scope["raw_path"].partition(b"?")[0]
                key = key_in_path(raw[len(CACHE_PATH) + 1 :])
            gone = self._cache.forget(tenant_of(scope), key)
        except DuologueError as error:
            await send_error(send, error_response(error))
            return
        self._metrics.forgotten_pages.inc(gone.pages)
        await send_json(send, deletion_object(key, gone.pages, gone.tokens))
