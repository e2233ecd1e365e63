"""Errors: each class has one status, and the body is OpenAI's."""

from __future__ import annotations

import json

import pytest

from duologue.api.errors import (
    HttpError,
    ModelNotFoundError,
    error_response,
    method_not_allowed,
    plain_status,
    unknown_url,
)
from duologue.errors import (
    CapacityError,
    DuologueError,
    EngineStoppedError,
    InvalidRequestError,
    ModelLoadError,
    TemplateError,
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (InvalidRequestError("x", param="seed", code="c"), 400, "invalid_request_error", "seed", "c"),
        (TemplateError("x"), 400, "invalid_request_error", "messages", "template_error"),
        (ModelNotFoundError("a", "b"), 404, "invalid_request_error", "model", "model_not_found"),
        (HttpError(413, "x", code="big"), 413, "invalid_request_error", None, "big"),
        (HttpError(503, "x", code="shutting_down"), 503, "server_error", None, "shutting_down"),
        (CapacityError("x"), 503, "server_error", None, "overloaded"),
        (EngineStoppedError("x"), 503, "server_error", None, "engine_stopped"),
        (ModelLoadError("x"), 500, "server_error", None, None),
        (DuologueError("x"), 500, "server_error", None, None),
    ],
)
def test_status_and_fields(
    error: DuologueError, status: int, kind: str, param: str | None, code: str | None
) -> None:
    response = error_response(error)
    assert response.status == status
    assert json.loads(response.body()) == {
        "error": {"message": str(error), "type": kind, "param": param, "code": code}
    }


def test_an_unexpected_exception_keeps_its_text_to_itself() -> None:
    response = error_response(KeyError("secret"))
    assert response.status == 500
    assert b"secret" not in response.body()


def test_unknown_models_hear_which_one_is_served() -> None:
    assert "'gpt-4'" in str(ModelNotFoundError("gpt-4", "tiny"))
    assert "'tiny'" in str(ModelNotFoundError("gpt-4", "tiny"))


def test_routing_errors() -> None:
    assert unknown_url("GET", "/x").status == 404
    assert "GET /x" in unknown_url("GET", "/x").message
    assert "allowed: POST" in method_not_allowed("GET", "/x", "POST").message
    assert (plain_status(400).type, plain_status(502).type) == ("invalid_request_error", "server_error")
