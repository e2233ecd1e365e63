"""The door to the API: which tenant a request belongs to, or a 401."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duologue.api.errors import HttpError, error_response
from duologue.server.http import send_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from duologue.api.tenants import Tenants
    from duologue.server.metrics import Metrics

_TENANT = "duologue.tenant"


class Guarded:
    """An endpoint that only authenticated clients reach. It learns the tenant by `tenant_of(scope)`."""

    def __init__(self, app: ASGIApp, tenants: Tenants, metrics: Metrics) -> None:
        self._app = app
        self._tenants = tenants
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[_TENANT] = self._tenants.authenticate(
                [value for name, value in scope["headers"] if name == b"authorization"]
            )
        except HttpError as error:
            self._metrics.unauthorized.inc()
            await send_error(send, error_response(error))
            return
        await self._app(scope, receive, send)


def tenant_of(scope: Scope) -> str:
    """Who has been authenticated."""
    tenant: str = scope[_TENANT]
    return tenant
