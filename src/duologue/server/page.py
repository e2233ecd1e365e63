"""The chat page at `/`: static files, read once, under a policy that allows nothing from outside."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from duologue.server.http import Headers, send_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_FOLDER = Path(__file__).parent / "static"

_FILES = {
    "/": ("page.html", b"text/html; charset=utf-8"),
    "/static/page.css": ("page.css", b"text/css; charset=utf-8"),
    "/static/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "/static/access.js": ("access.js", b"text/javascript; charset=utf-8"),
    "/static/tokens.js": ("tokens.js", b"text/javascript; charset=utf-8"),
    "/static/stream.js": ("stream.js", b"text/javascript; charset=utf-8"),
    "/static/render.js": ("render.js", b"text/javascript; charset=utf-8"),
    "/static/icon.svg": ("icon.svg", b"image/svg+xml"),
    "/favicon.ico": ("icon.svg", b"image/svg+xml"),
}

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class StaticFile:
    """One file as an ASGI application; a client that has it already gets a 304."""

    def __init__(self, content: bytes, content_type: bytes) -> None:
        self._content = content
        self._content_type = content_type
        self._etag = b'"' + hashlib.sha256(content).hexdigest()[:16].encode() + b'"'
        self._headers: Headers = [
            (b"etag", self._etag),
            (b"cache-control", b"no-cache"),
            (b"content-security-policy", _POLICY),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        if (b"if-none-match", self._etag) in headers:
            await send({"type": "http.response.start", "status": 304, "headers": self._headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send_response(send, 200, self._content, self._content_type, self._headers)


def page_resources() -> dict[str, StaticFile]:
    """Every path of the page and what it serves."""
    return {path: StaticFile((_FOLDER / name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}
