"""Filling the cache before the first user comes: personas, each the messages that many dialogues begin with."""

from __future__ import annotations

import logging
import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from duologue.api.body import invalid_field, json_object
from duologue.api.cache_fields import MAX_CACHE_SALT_CHARS
from duologue.api.chat import ChatMessage
from duologue.api.salts import cache_salt
from duologue.api.tenants import ANONYMOUS
from duologue.cache.scope import CacheScope
from duologue.engine.sampling_params import SamplingParams
from duologue.errors import DuologueError

if TYPE_CHECKING:
    from duologue.engine.engine import Engine
    from duologue.engine.events import TokenEvent
    from duologue.engine.request import Request

logger = logging.getLogger("duologue.server")

# A head start over what visitors bring, so that a busy first hour does not push the personas out before they are used.
WARM_RETENTION_S = 3600.0


class PersonaError(DuologueError):
    """A persona file cannot be read, or the model cannot take what it says."""


class _PersonaFile(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tenant: str | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None = None
    name: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class Persona:
    """The beginning of dialogues, whose dialogues these are, and with which of several models they are led."""

    path: Path
    messages: tuple[dict[str, Any], ...]
    scope: CacheScope
    model: str | None = None


def read_personas(paths: Sequence[Path], tenants: frozenset[str]) -> list[Persona]:
    """Reads persona files. Raises `PersonaError` that names the file and the field.

    With API keys a persona must name one of `tenants`, because tenants share nothing; without keys it must name none.
    """
    return [_read(path, tenants) for path in paths]


def _read(path: Path, tenants: frozenset[str]) -> Persona:
    where = f"the persona file '{path}'"
    try:
        file = _PersonaFile.model_validate(json_object(path.read_bytes()))
    except OSError as error:
        raise PersonaError(f"{where} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValidationError as error:
        raise PersonaError(f"{where}: {invalid_field(error.errors(include_url=False)[0])}") from None
    except DuologueError as error:
        raise PersonaError(f"{where}: {str(error).replace('The request body', 'it')}") from None
    tenant = ANONYMOUS if file.tenant is None else file.tenant
    if tenant not in tenants:
        raise PersonaError(f"{where}: {_tenant_fault(file.tenant, tenants)}")
    scope = CacheScope(tenant=tenant, salt=cache_salt(tenant, file.cache_salt), retention_s=WARM_RETENTION_S)
    return Persona(path, tuple(message.template_dict() for message in file.messages), scope, file.model)


def _tenant_fault(tenant: str | None, tenants: frozenset[str]) -> str:
    if ANONYMOUS in tenants:
        return "it names a 'tenant', but the server has no API keys; leave the tenant out or pass --api-keys"
    if tenant is None:
        return "it names no 'tenant'; tenants share nothing, so say whose persona it is"
    return f"no API key belongs to the tenant '{tenant[:64]}'; make one with 'duologue keys new'"


class Warmer:
    """Prefills personas. `run` blocks; `cancel` may be called from any thread and makes it return early."""

    def __init__(self, engines: Engine | Mapping[str, Engine], personas: Sequence[Persona]) -> None:
        """Raises `PersonaError` for a persona that names no model of several, or one that is not there."""
        self._engines = engines if isinstance(engines, Mapping) else {engines.model_name: engines}
        self._personas = [(self._model_of(persona), persona) for persona in personas]
        self.scopes = tuple((model, persona.scope) for model, persona in self._personas)
        self._done: queue.SimpleQueue[TokenEvent | None] = queue.SimpleQueue()

    def run(self) -> int:
        """Returns how many tokens of personas are stored. Raises `PersonaError` that names the file."""
        prompts = [self._encode(self._engines[model], persona) for model, persona in self._personas]
        for name, engine in self._engines.items():
            own = zip(self._personas, prompts, strict=True)
            tokens = sum(len(prompt) for (model, _), prompt in own if model == name)
            stats = engine.stats()
            if tokens * stats.kv_bytes_per_token > stats.kv_memory_bytes:
                logger.warning(
                    "the personas have %d tokens, more than the KV budget holds, so not all stay warm; raise --kv-memory",
                    tokens,
                )
        requests: list[tuple[Engine, Request]] = []
        try:
            for (model, persona), prompt_ids in zip(self._personas, prompts, strict=True):
                engine = self._engines[model]
                requests.append((engine, self._submit(engine, persona, prompt_ids)))
            for _ in requests:
                event = self._done.get()
                if event is None:
                    break
                if event.finish_reason == "error":
                    raise PersonaError(f"the engine failed while it read the personas: {event.error}")
        finally:
            for engine, request in requests:
                engine.abort(request)
        return sum(map(len, prompts))

    def cancel(self) -> None:
        self._done.put(None)

    def _model_of(self, persona: Persona) -> str:
        if persona.model is None and len(self._engines) == 1:
            return next(iter(self._engines))
        if persona.model is not None and persona.model in self._engines:
            return persona.model
        names = ", ".join(self._engines)
        raise PersonaError(
            f"the persona file '{persona.path}': its 'model' must be one of {names}"
            + ("" if persona.model is None else f", not '{persona.model[:64]}'")
        )

    def _encode(self, engine: Engine, persona: Persona) -> list[int]:
        """Up to the end of the last message: what follows there differs between dialogues."""
        try:
            return engine.template.encode_chat(
                engine.tokenizer, list(persona.messages), add_generation_prompt=False
            )
        except DuologueError as error:
            raise PersonaError(f"the persona file '{persona.path}': {error}") from None

    def _submit(self, engine: Engine, persona: Persona, prompt_ids: list[int]) -> Request:
        def on_event(event: TokenEvent) -> None:
            if event.finish_reason is not None:
                self._done.put(event)

        params = SamplingParams(temperature=0, max_tokens=1)
        try:
            return engine.submit(prompt_ids, params, on_event, scope=persona.scope)
        except DuologueError as error:
            raise PersonaError(f"the persona file '{persona.path}': {error}") from None
