"""The chat page at `/`: static files, read once, under a policy that allows nothing from outside."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from duologue.server.http import Headers, send_response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

_FOLDER = Path(__file__).parent / "static"

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}

_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # No script of the page can turn text into markup, by mistake either.
    b"require-trusted-types-for 'script'; trusted-types 'none'"
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
        if any(name == b"if-none-match" and self._matches(value) for name, value in headers):
            await send({"type": "http.response.start", "status": 304, "headers": self._headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send_response(send, 200, self._content, self._content_type, self._headers)

    def _matches(self, known: bytes) -> bool:
        # A proxy that compresses makes the tag a weak one.
        tags = [tag.strip().removeprefix(b"W/") for tag in known.split(b",")]
        return self._etag in tags or b"*" in tags


def page_resources() -> dict[str, StaticFile]:
    """Every path of the page and what it serves."""
    files = {
        path.name: StaticFile(path.read_bytes(), _TYPES[path.suffix])
        for path in sorted(_FOLDER.iterdir())
        if path.suffix in _TYPES
    }
    page = files.pop("page.html")
    resources = {f"/static/{name}": file for name, file in files.items()}
    return resources | {"/": page, "/favicon.ico": files["icon.svg"]}
