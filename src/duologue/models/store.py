"""The cache folder: where it is, locks, writes that are whole or absent, and digests that are computed
once."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import platformdirs
from filelock import FileLock, Timeout

from duologue.errors import ModelLoadError

CACHE_VARIABLE = "DUOLOGUE_CACHE"
_CHUNK_BYTES = 1 << 20
# A file that changed this recently may change again under the same timestamp, so its digest is not kept.
_SETTLED_S = 2.0
_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """$DUOLOGUE_CACHE, or `duologue` in the user's cache folder ($XDG_CACHE_HOME). Nothing is created."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return (
        Path(os.path.expanduser(chosen))
        if chosen
        else platformdirs.user_cache_path("duologue", appauthor=False)
    )


def make_folder(path: Path) -> Path:
    """Creates a folder below the cache. Raises ModelLoadError when that is not allowed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelLoadError(
            f"the cache folder {path} cannot be created ({error.strerror}); "
            f"set {CACHE_VARIABLE} to a folder that can be written"
        ) from error
    return path


@contextlib.contextmanager
def locked(path: Path, *, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock file `path` against other processes and threads; it is released also if the process
    dies.

    `waiting` is called once when someone else holds it. Raises OSError when the lock file cannot be created.
    """
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Calls `write(file)` on a new file and puts it at `path` only when all of it is on disk.

    Raises OSError (disk full, read-only); then nothing is left behind and an older file at `path` is
    untouched.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_temporary_prefix(path))
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # like other files, so that users of one cache can share it
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(path: Path) -> None:
    """Removes what writes to `path` left when their process was killed; hold the lock that guards them."""
    # Unlike Path.glob, glob.glob finds nothing in a folder that may not be read.
    for leftover in glob.glob(f"{glob.escape(str(path.parent / _temporary_prefix(path)))}*"):
        with contextlib.suppress(OSError):
            os.unlink(leftover)


def _temporary_prefix(path: Path) -> str:
    return f".{path.name[:40]}."


def hash_copy(source: BinaryIO, target: BinaryIO | None = None) -> str:
    """Hex SHA-256 of what is left in `source`, copied to `target` on the way."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Hex SHA-256 of a file, remembered in the cache folder for its path, size and time of modification.

    Raises OSError when the file cannot be read.
    """
    stat = path.stat()
    identity = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    side_file = _digest_file(path)
    with contextlib.suppress(OSError, ValueError, TypeError):
        remembered, sha256 = json.loads(side_file.read_text(encoding="utf-8"))
        if remembered == identity:
            return str(sha256)
    began_s = time.time()
    with path.open("rb") as file:
        sha256 = hash_copy(file)
    if began_s - stat.st_mtime > _SETTLED_S:
        remember_digest(path, sha256)
    return str(sha256)


def remember_digest(path: Path, sha256: str) -> None:
    """Notes the digest of a file that the caller has just hashed or written; a cache that cannot be written
    is no error."""
    try:
        stat = path.stat()
        identity = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
        side_file = _digest_file(path)
        side_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(side_file, lambda file: _write_json(file, [identity, sha256]))
    except OSError as error:
        _log.debug("the digest of %s is not remembered: %s", path, error)


def files_digest(paths: Iterable[Path]) -> str:
    """Hex SHA-256 over the names and contents of several files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name}:{file_digest(path)}\n".encode())
    return digest.hexdigest()


def _digest_file(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return cache_folder() / "digests" / f"{name[:32]}.json"


def _write_json(file: BinaryIO, value: object) -> None:
    file.write(json.dumps(value).encode())
