"""The salt of a request's cache keys: who may share KV with whom.

It comes from the tenant, which authentication proves and no request can choose. What a client sends as `cache_salt` is mixed in,
so it divides a tenant's cache further and can reach nobody else's. The digest is the same in every process, so a gateway and its
servers agree, and stored KV stays valid over a restart.
"""

from __future__ import annotations

import hashlib

SALT_BYTES = 32
_PURPOSE = b"duologue salt"


def cache_salt(tenant: str, client_salt: str | None = None) -> bytes:
    """The salt for a tenant's requests, `SALT_BYTES` long. No two pairs of tenant and client salt share one."""
    tenant_key = hashlib.blake2b(tenant.encode(), person=_PURPOSE).digest()
    # An absent salt is not the same as any that a client can send.
    mixed = b"" if client_salt is None else b"\x01" + client_salt.encode()
    return hashlib.blake2b(mixed, key=tenant_key, digest_size=SALT_BYTES, person=_PURPOSE).digest()


class SaltRegister:
    """Which salts each tenant uses, so that all of a tenant's KV can be forgotten.

    Clients may send a new salt with every request, so a tenant has at most `limit` salts: what is stored under the one that it
    has used least recently must be forgotten when it goes.
    """

    def __init__(self, limit: int = 1 << 16) -> None:
        self._limit = limit
        self._salts: dict[str, dict[bytes, None]] = {}  # the last used at the end

    def note(self, tenant: str, salt: bytes) -> bytes | None:
        """Records the use of a salt; returns one that has to go, if any."""
        salts = self._salts.setdefault(tenant, {})
        salts.pop(salt, None)
        salts[salt] = None
        if len(salts) <= self._limit:
            return None
        oldest = next(iter(salts))
        del salts[oldest]
        return oldest

    def of(self, tenant: str) -> list[bytes]:
        """The tenant's salts, the last used first."""
        return list(reversed(self._salts.get(tenant, {})))

    def forget(self, tenant: str) -> None:
        """Drops all salts of a tenant."""
        self._salts.pop(tenant, None)
