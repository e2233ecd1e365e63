"""One tenant's view of everything that is kept of its dialogues: KV in the engine, and replies as ids beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duologue.api.cache_report import CacheMiss, cache_report, parts_in_template
from duologue.api.salts import SaltRegister
from duologue.cache.kv_cache import ForgetResult
from duologue.cache.miss import cause_of

if TYPE_CHECKING:
    from duologue.api.cache_fields import CacheFields
    from duologue.cache.scope import CacheScope
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.engine.engine import Engine
    from duologue.server.prompts import Prompts

_STORED_TOKENS_SHOWN = 64
_OTHER_SALTS_TRIED = 16  # of the tenant's, the last used first, to find a prompt that was sent under another


class TenantCache:
    """Scopes, lookups, explanations and forgetting. Used on the event loop only."""

    def __init__(self, engine: Engine, prompts: Prompts) -> None:
        self._engine = engine
        self._prompts = prompts
        self._salts = SaltRegister()

    def scope(self, fields: CacheFields, tenant: str) -> CacheScope:
        """Where a request that will be computed belongs."""
        scope = fields.cache_scope(tenant)
        self.note(scope)
        return scope

    def note(self, scope: CacheScope) -> None:
        """Remembers that the tenant uses this salt."""
        gone = self._salts.note(scope.tenant, scope.salt)
        if gone is not None:
            self._forget_salt(gone)

    def matched_tokens(self, prompt: EncodedDialogue, scope: CacheScope) -> int:
        """How much of a prompt is stored; at least its last token is computed in any case."""
        return min(self._engine.cache.lookup(prompt.ids, scope.salt).matched_tokens, len(prompt.ids) - 1)

    def report(self, prompt: EncodedDialogue, scope: CacheScope) -> dict[str, Any]:
        """The `cache_report` of a prompt, from what is stored now. What it shows is the same salt's, and so the asker's own."""
        engine = self._engine
        lookup = engine.cache.lookup(prompt.ids, scope.salt)
        matched = min(lookup.matched_tokens, len(prompt.ids) - 1)
        if matched == len(prompt.ids) - 1:
            return cache_report(prompt, engine.tokenizer, CacheMiss(matched, "none"))
        parting = min(lookup.stored_tokens, len(prompt.ids) - 1)
        stored_ids = engine.cache.stored_branch(prompt.ids, scope.salt, _STORED_TOKENS_SHOWN)
        cause = cause_of(
            lookup,
            prompt.history_begin,
            in_template=parts_in_template(prompt, engine.tokenizer, parting, stored_ids),
            under_other_salt=self._under_other_salt(prompt, scope, lookup.stored_tokens),
        )
        return cache_report(
            prompt, engine.tokenizer, CacheMiss(matched, cause.value, parting, tuple(stored_ids))
        )

    def _under_other_salt(self, prompt: EncodedDialogue, scope: CacheScope, stored_tokens: int) -> bool:
        begun = len(prompt.ids) - 1 if prompt.history_begin is None else prompt.history_begin
        enough = max(stored_tokens + 1, begun)  # a system prompt alone is not this dialogue
        others = [salt for salt in self._salts.of(scope.tenant) if salt != scope.salt][:_OTHER_SALTS_TRIED]
        lookups = (self._engine.cache.lookup(prompt.ids, salt) for salt in others)
        return any(lookup.stored_tokens >= enough for lookup in lookups)

    def forget(self, tenant: str, key: str | None) -> ForgetResult:
        """Forgets what the tenant stored under a key, or with None everything."""
        if key is not None:
            gone = self._engine.cache_forget(tenant, key)
            for salt in self._salts.of(tenant):
                self._prompts.forget_key(salt, key)
            return gone
        results = [self._forget_salt(salt) for salt in self._salts.of(tenant)]
        self._salts.forget(tenant)
        return ForgetResult(sum(gone.pages for gone in results), sum(gone.tokens for gone in results))

    def _forget_salt(self, salt: bytes) -> ForgetResult:
        self._prompts.forget(salt)
        return self._engine.cache_forget_salt(salt)
