"""The ASGI application: routes, and every error in OpenAI's shape. There are no CORS headers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from duologue.api.errors import (
    ErrorResponse,
    ModelNotFoundError,
    error_response,
    method_not_allowed,
    plain_status,
    unknown_url,
)
from duologue.api.replies import model_object
from duologue.server.access import Guarded
from duologue.server.cache import CACHE_PATH, CacheDeletion, CacheLookup
from duologue.server.completions import ChatCompletions
from duologue.server.flight import Flights
from duologue.server.http import send_error, send_json, send_response
from duologue.server.mailbox import Postman
from duologue.server.metrics import Metrics
from duologue.server.page import page_resources
from duologue.server.prompts import Prompts
from duologue.server.tenant_cache import TenantCache

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from duologue.api.tenants import Tenants
    from duologue.engine.engine import Engine

MAX_BODY_BYTES = 8 * 1024 * 1024

_GET = ["GET"]


class _AnythingConvertor(Convertor[str]):
    """The rest of a path, line ends included, which `path` leaves out."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("anything", _AnythingConvertor())


@dataclass(frozen=True)
class Service:
    """One engine served over HTTP: the application and the handles that its runner needs."""

    app: ASGIApp
    flights: Flights
    metrics: Metrics
    cache: TenantCache


def create_service(engine: Engine, tenants: Tenants, max_body_bytes: int = MAX_BODY_BYTES) -> Service:
    """Builds the application for `engine`. To be called on the event loop that will serve it."""
    flights = Flights(engine)
    prompts = Prompts(engine)
    metrics = Metrics(engine.stats, engine.model_name, lambda: prompts.memory_bytes)
    postman = Postman(asyncio.get_running_loop())
    cache = TenantCache(engine, prompts)
    completions = ChatCompletions(engine, prompts, cache, flights, postman, metrics, max_body_bytes)
    lookup = CacheLookup(prompts, cache, metrics, max_body_bytes)
    deletion = CacheDeletion(cache, metrics, whole_tenant=False)
    tenant_deletion = CacheDeletion(cache, metrics, whole_tenant=True)
    models = _Models(engine)

    def guarded(path: str, endpoint: ASGIApp, methods: list[str]) -> Route:
        return Route(path, Guarded(endpoint, tenants, metrics), methods=methods)

    routes = [
        guarded("/v1/chat/completions", completions, ["POST"]),
        guarded("/v1/models", models, _GET),
        guarded("/v1/models/{model:path}", models, _GET),
        guarded(f"{CACHE_PATH}/lookup", lookup, ["POST"]),
        guarded(CACHE_PATH, tenant_deletion, ["DELETE"]),
        guarded(CACHE_PATH + "/{key:anything}", deletion, ["DELETE"]),
        Route("/health", _Health(engine), methods=_GET),
        Route("/ready", _Ready(engine, flights), methods=_GET),
        Route("/metrics", _Exposition(metrics), methods=_GET),
        *(Route(path, resource, methods=_GET) for path, resource in page_resources().items()),
    ]
    handlers = {HTTPException: _on_http_exception, Exception: _on_exception}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Service(_Interruptible(app, flights), flights, metrics, cache)


class _Interruptible:
    """Ends quietly what is still waiting for its client when the drain's time is up, a half-sent body for example."""

    def __init__(self, app: ASGIApp, flights: Flights) -> None:
        self._app = app
        self._flights = flights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self._flights.draining:
                raise


class _Models:
    """`/v1/models` and `/v1/models/{model}`."""

    def __init__(self, engine: Engine) -> None:
        self._name = engine.model_name
        self._model = model_object(engine.model_name, int(time.time()), engine.context_tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["path_params"].get("model")
        if asked is None:
            await send_json(send, {"object": "list", "data": [self._model]})
        elif asked == self._name:
            await send_json(send, self._model)
        else:
            await send_error(send, error_response(ModelNotFoundError(asked, self._name)))


class _Health:
    """Liveness: 503 once the engine's step loop has failed, so that a supervisor restarts the process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        alive = self._engine.failure is None
        await send_json(send, {"status": "ok" if alive else "engine stopped"}, 200 if alive else 503)


class _Ready:
    """Readiness: whether new requests are welcome here."""

    def __init__(self, engine: Engine, flights: Flights) -> None:
        self._engine = engine
        self._flights = flights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._flights.draining:
            await send_json(send, {"status": "draining"}, 503)
        elif self._flights.warming:
            await send_json(send, {"status": "warming"}, 503)
        elif self._engine.failure is not None:
            await send_json(send, {"status": "engine stopped"}, 503)
        else:
            await send_json(send, {"status": "ready"})


class _Exposition:
    """`/metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_response(send, 200, self._metrics.render(), self._metrics.content_type)


async def _on_http_exception(request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        response = unknown_url(request.method, request.url.path)
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        response = method_not_allowed(request.method, request.url.path, allowed)
    else:
        response = plain_status(error.status_code, error.detail)
    return _json_response(response, dict(error.headers or {}))


async def _on_exception(request: HttpRequest, error: Exception) -> Response:
    return _json_response(error_response(error))


def _json_response(error: ErrorResponse, headers: dict[str, str] | None = None) -> Response:
    return Response(error.body(), error.status, headers, media_type="application/json")
