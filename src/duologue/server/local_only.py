"""The door of a server that has no keys because only this machine reaches it: it is not open to web pages.

A page from anywhere runs in a browser on this machine. It could send a text that needs no preflight, or have its own name resolve
to this machine and so be of the server's own origin; `Origin` and `Host` tell.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from duologue.api.errors import HttpError, clipped, error_response
from duologue.server.http import send_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class LocalOnly:
    """Refuses with 403 what was sent to another name than this machine's, or by a page of another origin.

    `names` are names of this machine besides `localhost` and its loopback addresses, `origins` those of other pages that may
    call; "*" is any.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = (), origins: Collection[str] = ()) -> None:
        self._app = app
        self._names = {name.lower() for name in names}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check([(name, value.decode("latin-1")) for name, value in scope["headers"]])
        except HttpError as error:
            await send_error(send, error_response(error))
            return
        await self._app(scope, receive, send)

    def _check(self, headers: list[tuple[bytes, str]]) -> None:
        hosts = [value.lower() for name, value in headers if name == b"host"]
        for host in hosts:  # browsers always send one
            if not self._is_here(host):
                raise HttpError(
                    403,
                    f"This server has no API keys and answers to its own machine's names only, not to '{clipped(host)}'; "
                    "use localhost, start it with --api-keys, or with --allow-anonymous behind a proxy.",
                    code="host_not_allowed",
                )
        for name, origin in headers:
            if name == b"origin" and not self._may_call(origin, hosts):
                raise HttpError(
                    403,
                    f"Pages of '{clipped(origin)}' may not call this server, which has no API keys; start it with "
                    "--cors-origin ORIGIN to let them.",
                    code="origin_not_allowed",
                )

    def _is_here(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name.endswith(".localhost") or name in self._names:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return False

    def _may_call(self, origin: str, hosts: list[str]) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        scheme, _, authority = origin.partition("://")
        return scheme in ("http", "https") and authority.lower() in hosts
