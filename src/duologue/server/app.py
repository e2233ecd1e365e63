"""The ASGI application: routes, and every error in OpenAI's shape. There are no CORS headers unless asked for."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
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
from duologue.server.access import Guarded
from duologue.server.cache import CACHE_PATH, CacheDeletion, CacheLookup
from duologue.server.chat_completions import ChatCompletions
from duologue.server.flight import Flights
from duologue.server.http import send_error, send_json, send_response
from duologue.server.limits import Limits
from duologue.server.local_only import LocalOnly
from duologue.server.mailbox import Postman
from duologue.server.metrics import Metrics
from duologue.server.models import ServedModel, ServedModels
from duologue.server.page import page_resources
from duologue.server.text_completions import TextCompletions
from duologue.server.tokenization import Detokenize, Tokenize

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from duologue.api.tenants import Tenants
    from duologue.engine.engine import Engine

_GET = ["GET"]
_POST = ["POST"]


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
    """Models served over HTTP: the application and the handles that its runner needs."""

    app: ASGIApp
    flights: Flights
    metrics: Metrics
    models: ServedModels


def create_service(
    engines: Mapping[str, Engine],
    tenants: Tenants,
    limits: Limits | None = None,
    cors_origins: Sequence[str] = (),
    local_names: Collection[str] | None = None,
) -> Service:
    """Builds the application for engines by the names that clients use. To be called on the event loop that will serve it.

    `cors_origins` are the other origins whose scripts may call the API; "*" is any. With `local_names` other pages are
    kept out altogether (`LocalOnly`).
    """
    limits = limits or Limits()
    flights = Flights()
    models = ServedModels(engines)
    metrics = Metrics(
        {name: model.engine.stats for name, model in models.items()},
        {name: functools.partial(_dialogue_bytes, model) for name, model in models.items()},
    )
    postman = Postman(asyncio.get_running_loop())
    common = (models, flights, postman, metrics, limits)
    listing = _Models(models)
    body_bytes = limits.max_body_bytes

    def guarded(path: str, endpoint: ASGIApp, methods: list[str]) -> Route:
        return Route(path, Guarded(endpoint, tenants, metrics), methods=methods)

    routes = [
        guarded("/v1/chat/completions", ChatCompletions(*common), _POST),
        guarded("/v1/completions", TextCompletions(*common), _POST),
        guarded("/v1/models", listing, _GET),
        guarded("/v1/models/{model:path}", listing, _GET),
        guarded("/tokenize", Tokenize(models, body_bytes), _POST),
        guarded("/detokenize", Detokenize(models, body_bytes), _POST),
        guarded(f"{CACHE_PATH}/lookup", CacheLookup(models, metrics, body_bytes), _POST),
        guarded(CACHE_PATH, CacheDeletion(models, metrics, whole_tenant=True), ["DELETE"]),
        guarded(
            CACHE_PATH + "/{key:anything}", CacheDeletion(models, metrics, whole_tenant=False), ["DELETE"]
        ),
        Route("/openapi.json", _Document(tuple(models)), methods=_GET),
        Route("/health", _Health(models), methods=_GET),
        Route("/ready", _Ready(models, flights), methods=_GET),
        Route("/metrics", _Exposition(metrics), methods=_GET),
        *(Route(path, resource, methods=_GET) for path, resource in page_resources().items()),
    ]
    handlers = {HTTPException: _on_http_exception, Exception: _on_exception}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    outer: ASGIApp = _Interruptible(app, flights)
    if cors_origins:
        outer = CORSMiddleware(
            outer, allow_origins=cors_origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"]
        )
    if local_names is not None:
        outer = LocalOnly(outer, local_names, cors_origins)
    return Service(outer, flights, metrics, models)


def _dialogue_bytes(model: ServedModel) -> int:
    return model.prompts.memory_bytes


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

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["path_params"].get("model")
        if asked is None:
            data = [model.as_dict() for model in self._models.values()]
            await send_json(send, {"object": "list", "data": data})
            return
        try:
            model = self._models[asked]
        except ModelNotFoundError as error:
            await send_error(send, error_response(error))
        else:
            await send_json(send, model.as_dict())


class _Document:
    """`/openapi.json`, made when it is first asked for."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._content: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._content is None:
            from duologue.api.openapi import openapi_document

            self._content = json.dumps(openapi_document(self._names)).encode()
        await send_json(send, self._content)


class _Health:
    """Liveness: 503 once a step loop has failed, so that a supervisor restarts the process."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        alive = not _has_failed(self._models)
        await send_json(send, {"status": "ok" if alive else "engine stopped"}, 200 if alive else 503)


class _Ready:
    """Readiness: whether new requests are welcome here."""

    def __init__(self, models: ServedModels, flights: Flights) -> None:
        self._models = models
        self._flights = flights

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._flights.draining:
            await send_json(send, {"status": "draining"}, 503)
        elif self._flights.warming:
            await send_json(send, {"status": "warming"}, 503)
        elif _has_failed(self._models):
            await send_json(send, {"status": "engine stopped"}, 503)
        else:
            await send_json(send, {"status": "ready"})


def _has_failed(models: ServedModels) -> bool:
    return any(model.engine.failure is not None for model in models.values())


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
