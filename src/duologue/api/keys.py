"""API keys: a file of hashes that names each key's tenant, and the lookup of a key.

The file is text, one key a line: the key's SHA-256 as 64 hex digits, the tenant's name, and anything after that is a comment.
Empty lines and lines that begin with `#` are skipped. A key has 256 random bits, so a fast hash is enough: there is nothing to
guess. Keys themselves are stored nowhere.

A lookup blinds the key's hash with a secret of this process before it looks into a table, so how long it takes tells nothing
about the stored hashes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from duologue.errors import DuologueError

KEY_PREFIX = "duo-"
MAX_FILE_BYTES = 16 << 20
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")

_HEADER = "# duologue API keys: SHA-256 of the key, tenant, comment\n"


class KeyFileError(DuologueError):
    """A file of API keys cannot be read, written, or understood."""


@dataclass(frozen=True)
class KeyEntry:
    """One line of a key file: a key's SHA-256 (32 bytes) and whose key it is."""

    digest: bytes
    tenant: str
    comment: str = ""

    @property
    def line(self) -> str:
        """The entry as a line of the file, without the line end."""
        return f"{self.digest.hex()} {self.tenant} {self.comment}".rstrip()


def new_key() -> str:
    """A fresh API key; URL-safe, 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_digest(key: str) -> bytes:
    """What a file stores of a key, 32 bytes."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def check_tenant(name: str) -> str:
    """`name` if it can name a tenant. Raises `KeyFileError`."""
    if not _TENANT.fullmatch(name):
        raise KeyFileError(
            f"{name[:80]!r} cannot name a tenant: use 1 to 64 letters, digits, '.', '_' and '-', and begin with a "
            "letter or digit"
        )
    return name


def read_key_file(path: Path) -> tuple[KeyEntry, ...]:
    """All entries of a key file. Raises `KeyFileError` that names the file, the line and the remedy."""
    try:
        # Opened so that a pipe does not block: a server reads its keys on the event loop.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise KeyFileError(
                    f"the API key file '{path}' is not a regular file, which can be read again when it changes"
                )
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise KeyFileError(f"the API key file '{path}' cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise KeyFileError(f"the API key file '{path}' is larger than {MAX_FILE_BYTES:,} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KeyFileError(f"the API key file '{path}' is not UTF-8 text (byte {error.start})") from None
    entries: list[KeyEntry] = []
    line_of: dict[bytes, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"the API key file '{path}', line {number}"
        entry = _parse(line, where)
        if entry is None:
            continue
        if entry.digest in line_of:
            raise KeyFileError(
                f"{where}: the key is there already, in line {line_of[entry.digest]}; remove one"
            )
        line_of[entry.digest] = number
        entries.append(entry)
    return tuple(entries)


def _parse(line: str, where: str) -> KeyEntry | None:
    fields = line.split(maxsplit=2)
    if not fields or fields[0].startswith("#"):
        return None
    # What stands there may be a key in plain text, so no message repeats it.
    if not _DIGEST.fullmatch(fields[0]):
        raise KeyFileError(
            f"{where}: the first word is not a SHA-256 in hex (64 digits); make keys with 'duologue keys new'"
        )
    if len(fields) < 2:
        raise KeyFileError(f"{where}: no tenant after the hash; write '<sha256> <tenant>'")
    try:
        tenant = check_tenant(fields[1])
    except KeyFileError as error:
        raise KeyFileError(f"{where}: {error}") from None
    return KeyEntry(bytes.fromhex(fields[0]), tenant, fields[2].strip() if len(fields) > 2 else "")


def append_key(path: Path, entry: KeyEntry) -> None:
    """Adds an entry to a key file, which is made, for its owner's eyes only, if there is none.

    Servers that watch the file never see half of it: it is replaced as a whole. Raises `KeyFileError`; a file that cannot be
    understood stays as it is.
    """
    if entry.comment != " ".join(entry.comment.split()):
        raise KeyFileError("a comment is one line without doubled spaces")
    try:
        line = entry.line.encode() + b"\n"
    except UnicodeEncodeError:  # some locales let bytes through that are not UTF-8, as lone surrogates
        raise KeyFileError("the comment is not valid UTF-8") from None
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
        with _locked(target.parent):
            old, mode = _HEADER.encode(), 0o600
            if os.path.lexists(target):
                if any(entry.digest == other.digest for other in read_key_file(path)):
                    raise KeyFileError(f"the API key file '{path}' holds this key already")
                old, mode = target.read_bytes(), stat.S_IMODE(target.stat().st_mode)
            if old and not old.endswith(b"\n"):
                old += b"\n"
            _replace(target, old + line, mode)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise KeyFileError(f"the API key file '{path}' cannot be written: {reason}") from None


def _replace(target: Path, content: bytes, mode: int) -> None:
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        scratch.chmod(mode)
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keeps two processes from adding keys at once, of which one would be lost."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class KeyRing:
    """Tenants by key, immutable."""

    def __init__(self, entries: Iterable[KeyEntry]) -> None:
        self._secret = secrets.token_bytes(32)
        self._entries = {self._blind(entry.digest): entry for entry in entries}
        self.tenants = frozenset(entry.tenant for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def tenant_of(self, key: str) -> str | None:
        """Whose key this is, or None when it is nobody's."""
        digest = key_digest(key)
        entry = self._entries.get(self._blind(digest))
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            return None
        return entry.tenant

    def _blind(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=32).digest()
