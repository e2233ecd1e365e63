"""Who is asking: the tenant that a request's `Authorization` header proves, from a key file that may change at any time."""

from __future__ import annotations

import logging
import os
import stat
import time
from pathlib import Path
from typing import Protocol

from duologue.api.errors import HttpError
from duologue.api.keys import KeyFileError, KeyRing, read_key_file

ANONYMOUS = ""  # the one tenant of a server without keys
_CHECK_INTERVAL_S = 1.0
_Signature = tuple[int, int, int, int]

logger = logging.getLogger("duologue.api")


class Tenants(Protocol):
    """What a server or gateway needs to know of its clients."""

    @property
    def names(self) -> frozenset[str]:
        """All tenants that exist now."""

    def authenticate(self, authorization: list[bytes]) -> str:
        """The tenant of a request, from the values of all its `Authorization` headers. Raises `HttpError` 401."""


class AnonymousTenants:
    """No keys: every client is the same tenant, whatever it sends."""

    names = frozenset((ANONYMOUS,))

    def authenticate(self, authorization: list[bytes]) -> str:
        return ANONYMOUS


class KeyFileTenants:
    """Tenants from a key file.

    The file is looked at again when it has changed, at most once a second, and at every `reload`. One that cannot be read or
    understood leaves the keys as they were and is logged once. Not for use from several threads at once.
    """

    def __init__(self, path: Path) -> None:
        """Raises `KeyFileError` when the file is not usable to begin with."""
        self._path = path
        self._signature = _signature(path)
        self._ring = KeyRing(read_key_file(path))
        self._checked_s = time.monotonic()
        self._warn_about_file()

    @property
    def names(self) -> frozenset[str]:
        self._reload_if_changed()
        return self._ring.tenants

    def authenticate(self, authorization: list[bytes]) -> str:
        """Raises `HttpError` 401, code `invalid_api_key`, in OpenAI's words."""
        key = _bearer(authorization)
        self._reload_if_changed()
        tenant = self._ring.tenant_of(key)
        if tenant is None:
            # Not even a part of the key is repeated: it may be a good key of another service.
            raise HttpError(
                401, "Incorrect API key provided: this server does not know it.", code="invalid_api_key"
            )
        return tenant

    def reload(self) -> bool:
        """Reads the file now. False, and the reason in the log, when the keys stay as they were."""
        self._checked_s = time.monotonic()
        signature = _signature(self._path)  # taken first, so that a change while reading is noticed later
        try:
            ring = KeyRing(read_key_file(self._path))
        except KeyFileError as error:
            logger.error("%s; the %d keys read before stay in use", error, len(self._ring))
            return False
        finally:
            self._signature = signature
        self._ring = ring
        self._warn_about_file()
        return True

    def _reload_if_changed(self) -> None:
        now_s = time.monotonic()
        if now_s - self._checked_s < _CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        if _signature(self._path) != self._signature:
            self.reload()

    def _warn_about_file(self) -> None:
        if not len(self._ring):
            logger.warning(
                "the API key file '%s' holds no key, so every request is refused; make one with 'duologue keys new'",
                self._path,
            )
        mode = self._signature[3] if self._signature is not None else 0
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            logger.warning(
                "the API key file '%s' can be written by others, who could add keys; chmod it to 600",
                self._path,
            )
        elif mode & stat.S_IROTH:
            logger.warning("the API key file '%s' can be read by everyone; chmod it to 600", self._path)


def _signature(path: Path) -> _Signature | None:
    """Changes when the file does; None when there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, stat.S_IMODE(status.st_mode))


def _bearer(authorization: list[bytes]) -> str:
    if not authorization:
        raise HttpError(
            401,
            "You didn't provide an API key. Send it in the header: Authorization: Bearer YOUR_KEY.",
            code="invalid_api_key",
        )
    scheme, _, key = authorization[0].strip().partition(b" ")
    key = key.strip()
    if len(authorization) > 1 or scheme.lower() != b"bearer" or not key:
        raise HttpError(
            401,
            "The Authorization header is malformed; send exactly one: Authorization: Bearer YOUR_KEY.",
            code="invalid_api_key",
        )
    return key.decode("latin-1")
