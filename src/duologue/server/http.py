"""The few pieces of ASGI that all endpoints share: bounded bodies and whole responses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from duologue.api.errors import ErrorResponse, HttpError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

Headers = list[tuple[bytes, bytes]]
_DISCARDED_BODIES = 8  # times the limit for a body


class ClientDisconnected(Exception):  # noqa: N818 - an event, not an error of anybody
    """The client went away before its request was complete."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """The whole request body. Raises `HttpError` 413 as soon as it is known to be larger than `max_bytes`."""
    headers: Headers = scope["headers"]
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > max_bytes:
            await _discard(receive, _DISCARDED_BODIES * max_bytes)
            raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunk: bytes = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            if message.get("more_body", False):
                await _discard(receive, _DISCARDED_BODIES * max_bytes)
            raise _too_large(max_bytes)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _discard(receive: Receive, limit_bytes: int) -> None:
    """Takes the rest of a body, up to a limit: a client that is still sending when the connection closes may not see the answer."""
    size_bytes = 0
    while size_bytes <= limit_bytes:
        message = await receive()
        size_bytes += len(message.get("body", b""))
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return


def _too_large(max_bytes: int) -> HttpError:
    message = f"The request body is larger than the limit of {max_bytes:,} bytes; send less."
    return HttpError(413, message, code="request_too_large")


async def send_response(
    send: Send, status: int, body: bytes, content_type: bytes, headers: Headers | None = None
) -> None:
    """One complete response."""
    head: Headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": head + (headers or [])})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, body: bytes | dict[str, Any], status: int = 200) -> None:
    """A JSON response; a dict is encoded."""
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    await send_response(send, status, encoded, b"application/json")


async def send_error(send: Send, error: ErrorResponse, headers: Headers | None = None) -> None:
    """An error response in OpenAI's shape."""
    headers = list(headers or [])
    if error.status in (413, 503):
        # 413: the rest of the body is not worth reading. 503: the next try should find another server.
        headers.append((b"connection", b"close"))
    if error.status in (429, 503):
        headers.append((b"retry-after", b"1"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send_response(send, error.status, error.body(), b"application/json", headers)
