"""One tenant's view of everything that is kept of its dialogues: KV in the engine, and replies as ids beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duologue.api.cache_report import CacheMiss, cache_report, parts_in_template
from duologue.api.salts import SaltRegister
from duologue.api.tenants import ANONYMOUS
from duologue.cache.kv_cache import ForgetResult
from duologue.cache.miss import MissHints, cause_of

if TYPE_CHECKING:
    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.engine.engine import Engine
    from duologue.engine.request import Request
    from duologue.server.prompts import Prompts

_STORED_TOKENS_SHOWN = 64
_OTHER_SALTS_TRIED = 16  # of the tenant's, the last used first, to find a prompt that was sent under another


@dataclass(eq=False)
class Running:
    """A request that is being computed. Once it is `forgotten`, nothing of it may be kept."""

    scope: CacheScope
    forgotten: bool = False
    requests: list[Request] = field(default_factory=list)

    def started(self, request: Request) -> None:
        """It has reached the engine."""
        self.requests.append(request)
        request.keep = not self.forgotten

    def forget(self) -> None:
        """Nothing that it computes is to stay."""
        self.forgotten = True
        for request in self.requests:
            request.keep = False


class TenantCache:
    """Scopes, lookups, explanations and forgetting. Used on the event loop; `look` and `report` from any thread."""

    def __init__(self, engine: Engine, prompts: Prompts) -> None:
        self._engine = engine
        self._prompts = prompts
        self._salts = SaltRegister()
        self._running: set[Running] = set()

    @contextlib.contextmanager
    def running(self, scope: CacheScope) -> Iterator[Running]:
        """While a request of this scope runs. It is told when what it belongs to is forgotten meanwhile."""
        self.note(scope)
        running = Running(scope)
        self._running.add(running)
        try:
            yield running
        finally:
            self._running.discard(running)

    def note(self, scope: CacheScope) -> None:
        """Remembers that the tenant uses this salt."""
        gone = self._salts.note(scope.tenant, scope.salt)
        if gone is not None:
            self._forget_salt(gone)

    def matched_tokens(self, prompt: EncodedDialogue, scope: CacheScope) -> int:
        """How much of a prompt is stored; at least its last token is computed in any case."""
        return min(self._engine.cache_lookup(prompt.ids, scope).matched_tokens, len(prompt.ids) - 1)

    def look(self, prompt: EncodedDialogue, scope: CacheScope) -> tuple[CacheMiss, MissHints]:
        """What of a prompt is stored now, and why the rest is not; and what the latter was told by."""
        engine = self._engine
        last = len(prompt.ids) - 1  # is computed in any case
        lookup = engine.cache.lookup(prompt.ids, scope.salt)
        matched, parting = min(lookup.matched_tokens, last), min(lookup.stored_tokens, last)
        if matched == last:
            return CacheMiss(matched, "none"), MissHints(prompt.history_begin)
        stored_ids: list[int] = []
        if lookup.diverges:
            stored_ids = engine.cache.stored_branch(prompt.ids, scope.salt, _STORED_TOKENS_SHOWN)
        hints = MissHints(
            prompt.history_begin,
            in_template=parts_in_template(prompt, engine.tokenizer, parting, stored_ids),
            in_insert=prompt.in_passed_insert(parting),
            under_other_salt=self._under_other_salt(prompt, scope, lookup.stored_tokens),
        )
        return CacheMiss(matched, cause_of(lookup, hints).value, parting, tuple(stored_ids)), hints

    def report(self, prompt: EncodedDialogue, miss: CacheMiss) -> dict[str, Any]:
        """The `cache_report` of a prompt. What it shows is the same salt's, and so the asker's own."""
        return cache_report(prompt, self._engine.tokenizer, miss)

    def _under_other_salt(self, prompt: EncodedDialogue, scope: CacheScope, stored_tokens: int) -> bool:
        # Without keys nobody vouches that salts belong to one: what one holds is no business of another.
        if scope.tenant == ANONYMOUS:
            return False
        # A system prompt alone is not this dialogue; its first user message under the own salt is.
        begun = len(prompt.ids) - 1 if prompt.history_begin is None else prompt.history_begin
        if stored_tokens >= begun:
            return False
        others = [salt for salt in self._salts.of(scope.tenant) if salt != scope.salt][:_OTHER_SALTS_TRIED]
        lookups = (self._engine.cache.lookup(prompt.ids, salt) for salt in others)
        return any(lookup.stored_tokens >= begun for lookup in lookups)

    async def forget(self, tenant: str, key: str | None) -> ForgetResult:
        """Forgets what the tenant stored under a key, or with None everything; also what is running now. Raises EngineStoppedError
        when the engine has failed."""
        self._engine.require_running()
        for running in self._running:
            if running.scope.tenant == tenant and key in (None, running.scope.key):
                running.forget()
        salts = self._salts.of(tenant)
        if key is None:
            self._salts.forget(tenant)
        # What is stored may be much; the streams of others must not wait for it.
        return await asyncio.get_running_loop().run_in_executor(None, self._forget, tenant, key, salts)

    def _forget(self, tenant: str, key: str | None, salts: list[bytes]) -> ForgetResult:
        if key is not None:
            for salt in salts:
                self._prompts.forget_key(salt, key)
            return self._engine.cache_forget(tenant, key)
        results = [self._forget_salt(salt) for salt in salts]
        return ForgetResult(sum(gone.pages for gone in results), sum(gone.tokens for gone in results))

    def _forget_salt(self, salt: bytes) -> ForgetResult:
        self._prompts.forget(salt)
        return self._engine.cache_forget_salt(salt)
