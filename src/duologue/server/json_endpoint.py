"""An endpoint that takes a JSON body and answers with an object, without generating anything."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from duologue.api.errors import error_response
from duologue.errors import DuologueError
from duologue.server.access import tenant_of
from duologue.server.http import ClientDisconnected, read_body, send_error, send_json

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from duologue.server.models import ServedModels


class JsonEndpoint(ABC):
    """Bounds the body, sends the answer, and errors in OpenAI's shape; a plain ASGI application."""

    def __init__(self, models: ServedModels, max_body_bytes: int) -> None:
        self._models = models
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self._max_body_bytes)
            answer = await self._answer(body, tenant_of(scope))
        except ClientDisconnected:
            return
        except DuologueError as error:
            await send_error(send, error_response(error))
            return
        await send_json(send, answer)

    @abstractmethod
    async def _answer(self, body: bytes, tenant: str) -> dict[str, Any]:
        """The object for a tenant's request. Raises `DuologueError`."""
