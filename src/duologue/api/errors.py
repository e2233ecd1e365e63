"""Errors in OpenAI's shape, and the HTTP status that each of duologue's errors gets.

Every body is `{"error": {"message", "type", "param", "code"}}`. The engine and the dialogue layer know no
HTTP: they raise `DuologueError` subclasses, and `error_response` is the one place that gives those a status.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from duologue.errors import (
    CapacityError,
    DuologueError,
    EngineStoppedError,
    InvalidRequestError,
    TemplateError,
)

BAD_REQUEST_TYPE = "invalid_request_error"
SERVER_TYPE = "server_error"
RATE_LIMIT_TYPE = "rate_limit_error"


class HttpError(DuologueError):
    """An error whose HTTP status does not follow from its class alone."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class ModelNotFoundError(HttpError):
    """The request names a model that this server does not serve, one of `served`."""

    def __init__(self, asked: str, *served: str) -> None:
        names = ", ".join(f"'{name}'" for name in served)
        super().__init__(
            404,
            f"The model '{clipped(asked)}' does not exist on this server; it serves {names}.",
            param="model",
            code="model_not_found",
        )


def clipped(text: str, limit: int = 200) -> str:
    """What a client sent, short enough to be sent back."""
    return text if len(text) <= limit else f"{text[:limit]}..."


@dataclass(frozen=True)
class ErrorResponse:
    """An HTTP status and the four members of OpenAI's error object."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None

    def body(self) -> bytes:
        """The JSON body, UTF-8 encoded (every character outside ASCII is escaped)."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()


def error_response(error: Exception) -> ErrorResponse:
    """What a client is told about `error`. The text of an unexpected exception stays in the server's log."""
    message = str(error)
    if isinstance(error, HttpError):
        kind = BAD_REQUEST_TYPE if error.status < 500 else SERVER_TYPE
        if error.status == 429:
            kind = RATE_LIMIT_TYPE
        return ErrorResponse(error.status, message, kind, error.param, error.code)
    if isinstance(error, InvalidRequestError):
        return ErrorResponse(400, message, BAD_REQUEST_TYPE, error.param, error.code)
    if isinstance(error, TemplateError):
        return ErrorResponse(400, message, BAD_REQUEST_TYPE, "messages", "template_error")
    if isinstance(error, CapacityError):
        return ErrorResponse(503, message, SERVER_TYPE, None, "overloaded")
    if isinstance(error, EngineStoppedError):
        return ErrorResponse(503, message, SERVER_TYPE, None, "engine_stopped")
    if isinstance(error, DuologueError):
        return ErrorResponse(500, message, SERVER_TYPE)
    return ErrorResponse(500, "The server failed on this request; its log has the details.", SERVER_TYPE)


def unknown_url(method: str, path: str) -> ErrorResponse:
    """The 404 for a path that no route has."""
    message = f"Unknown request URL: {method} {path}. The API is at POST /v1/chat/completions."
    return ErrorResponse(404, message, BAD_REQUEST_TYPE, None, "unknown_url")


def method_not_allowed(method: str, path: str, allowed: str) -> ErrorResponse:
    """The 405 for a route that exists with other methods; `allowed` is the value of the Allow header."""
    message = f"Not allowed to {method} on {path}; allowed: {allowed}."
    return ErrorResponse(405, message, BAD_REQUEST_TYPE, None, "method_not_supported")


def plain_status(status: int, detail: str = "") -> ErrorResponse:
    """An error that has only a status, such as one that the HTTP layer found by itself."""
    kind = BAD_REQUEST_TYPE if status < 500 else SERVER_TYPE
    return ErrorResponse(status, detail or HTTPStatus(status).phrase, kind)
