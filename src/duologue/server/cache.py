"""`/v1/cache`: what is stored of a prompt, and forgetting it. Every tenant sees and forgets its own only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.datastructures import QueryParams

from duologue.api.cache import deletion_object, key_in_path, lookup_object
from duologue.api.chat import parse_chat_request
from duologue.api.errors import error_response
from duologue.errors import DuologueError
from duologue.kernels import PAGE_TOKENS
from duologue.server.access import tenant_of
from duologue.server.endpoint import parsed
from duologue.server.http import send_error, send_json
from duologue.server.json_endpoint import JsonEndpoint

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from duologue.server.metrics import Metrics
    from duologue.server.models import ServedModel, ServedModels

CACHE_PATH = "/v1/cache"


class CacheLookup(JsonEndpoint):
    """`POST /v1/cache/lookup`: takes the body of a chat completion and runs nothing."""

    def __init__(self, models: ServedModels, metrics: Metrics, max_body_bytes: int) -> None:
        super().__init__(models, max_body_bytes)
        self._metrics = metrics

    async def _answer(self, body: bytes, tenant: str) -> dict[str, Any]:
        request = await parsed(parse_chat_request, body)
        model = self._models[request.model]
        if request.uses_tools:
            model.require_tools()
        cache_scope = request.cache_scope(tenant)
        prompt = await model.prompts.encode(request, cache_scope, only_look=True)
        matched_tokens = model.cache.matched_tokens(prompt, cache_scope)
        self._metrics.of(model.name).lookups.inc()
        return lookup_object(request.model, len(prompt.ids), matched_tokens, page_tokens=PAGE_TOKENS)


class CacheDeletion:
    """`DELETE /v1/cache/{key}` and, with `whole_tenant`, `DELETE /v1/cache`: of the model in the query, or of all."""

    def __init__(self, models: ServedModels, metrics: Metrics, *, whole_tenant: bool) -> None:
        self._models = models
        self._metrics = metrics
        self._whole_tenant = whole_tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: str | None = None
        try:
            if not self._whole_tenant:
                # The path that the router sees has been decoded, and what is not UTF-8 has been replaced there.
                raw: bytes = scope["raw_path"].partition(b"?")[0]
                key = key_in_path(raw[len(CACHE_PATH) + 1 :])
            pages = tokens = 0
            for model in self._asked(scope):
                gone = await model.cache.forget(tenant_of(scope), key)
                self._metrics.of(model.name).forgotten_pages.inc(gone.pages)
                pages, tokens = pages + gone.pages, tokens + gone.tokens
        except DuologueError as error:
            await send_error(send, error_response(error))
            return
        await send_json(send, deletion_object(key, pages, tokens))

    def _asked(self, scope: Scope) -> list[ServedModel]:
        name = QueryParams(scope["query_string"]).get("model")
        return list(self._models.values()) if name is None else [self._models[name]]
