"""Removes models and leftovers from the cache folder, but nothing that a process has loaded or is just fetching."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from duologue.errors import ModelLoadError
from duologue.models.hold import only_user
from duologue.models.hub import hub_folder, record_path, repository_folder, repository_lock
from duologue.models.hub_id import HubId, parse_hub_id
from duologue.models.inventory import Entry, find, inventory, size_of, snapshots
from duologue.models.store import cache_folder


@dataclass(frozen=True)
class Removal:
    """A file or folder, what it takes, and why it goes."""

    path: Path
    size_bytes: int
    reason: str


def remove(name: str) -> list[Removal]:
    """Removes a model from the cache, as it came and as it was packed. Files and folders outside of the cache stay.

    Raises ModelLoadError when there is no such model, a process has it loaded, or one is fetching it.
    """
    removals = []
    for entry in find(name):
        with ExitStack() as locks:
            for packed in entry.packed:
                if not locks.enter_context(only_user(packed.path)):
                    raise ModelLoadError(
                        f"{name} is in use; stop the server, or whatever has loaded it, first"
                    )
            if entry.path is not None:
                lock = _fetching_lock(entry)
                try:
                    locks.enter_context(FileLock(lock).acquire(timeout=0))
                except Timeout:
                    raise ModelLoadError(
                        f"{name} is being fetched by another process; wait for it, or stop it"
                    ) from None
            for packed in entry.packed:
                removals.append(_removed(Removal(packed.path, packed.size_bytes, "packed")))
                packed.path.with_suffix(".lock").unlink(missing_ok=True)
            if entry.kind == "alias" and entry.path is not None:
                removals.append(_removed(Removal(entry.path, entry.source_bytes, "as it came")))
            if entry.kind == "hub":
                hub_id = parse_hub_id(name)
                assert hub_id is not None
                record_path(hub_id).unlink(missing_ok=True)
                # What of its repository no other id stands for. Others may be in the middle of being fetched.
                folder = repository_folder(hub_id)
                removals += [_removed(removal) for removal in _unused_of_hub([folder], set(), "as it came")]
    return removals


def prune(*, dry_run: bool = False) -> list[Removal]:
    """Removes what no start would read: packed files of other versions, downloads that were cut off, files of a repository that
    no id stands for, and notes about files that are gone. With `dry_run` only tells."""
    removals = []
    for removal in _leftovers():
        if dry_run:
            removals.append(removal)
            continue
        with only_user(removal.path) as unused, suppress(OSError):
            if unused:
                removals.append(_removed(removal))
                if removal.path.suffix == ".safetensors":
                    removal.path.with_suffix(".lock").unlink(missing_ok=True)
    return removals


def _leftovers() -> Iterator[Removal]:
    for entry in inventory():
        for packed in entry.packed:
            if not packed.current and not packed.in_use:
                yield Removal(packed.path, packed.size_bytes, "packed by another version")
    root = cache_folder()
    for path in sorted((root / "packed").glob(".*")):
        if path.is_file() and not _is_locked(next(iter(_locks_of(path)), None)):
            yield Removal(path, size_of(path), "a write that was cut off")
    for folder in sorted((root / "models").glob("*/")):
        if not _is_locked(folder / ".lock"):
            for path in [*folder.glob("*.part"), *(root / "downloads").glob(f"{folder.name}-*")]:
                yield Removal(path, size_of(path), "a download that was cut off")
    for folder in sorted(hub_folder().glob("models--*")):
        with _unless_fetched(folder) as free:
            if free:
                cut_off = sorted(folder.glob("blobs/*.incomplete"))
                for path in cut_off:
                    yield Removal(path, size_of(path), "a download that was cut off")
                yield from _unused_of_hub([folder], {path.resolve() for path in cut_off}, "an older revision")
    for path in sorted((root / "digests").glob("*.json")):
        with suppress(OSError, ValueError, TypeError, IndexError):
            if not Path(json.loads(path.read_text(encoding="utf-8"))[0][0]).exists():
                yield Removal(path, size_of(path), "about a file that is gone")


def _unused_of_hub(folders: Collection[Path], told: set[Path], reason: str) -> Iterator[Removal]:
    """Snapshots of these repositories that no id stands for, and then their blobs that no other snapshot has.

    Whoever is fetching has blobs and a snapshot before there is an id: to be called under the repositories' locks.
    """
    unused = [path for path, used in snapshots().items() if not used and path.parents[1] in folders]
    kept = {
        file.resolve()
        for path, used in snapshots().items()
        if used
        for file in path.rglob("*")
        if file.is_file()
    }
    blobs = [blob for folder in folders for blob in folder.glob("blobs/*")]
    for blob in sorted(blob for blob in blobs if blob.resolve() not in kept | told):
        if not blob.name.endswith(".incomplete"):
            yield Removal(blob, size_of(blob), reason)
    for path in sorted(unused):
        yield Removal(path, 0, reason)


@contextmanager
def _unless_fetched(folder: Path) -> Iterator[bool]:
    """Holds the lock of a repository's folder; False when whoever fetches it has the lock."""
    lock = repository_lock(HubId(folder.name.removeprefix("models--").replace("--", "/", 1)))
    try:
        with FileLock(lock).acquire(timeout=0):
            yield True
    except Timeout:
        yield False


def _locks_of(leftover: Path) -> list[Path]:
    """The lock of the packed file that a half-written one, named after its first 40 characters, was to become."""
    return list(leftover.parent.glob(f"{leftover.name[1:41]}*.lock"))


def _fetching_lock(entry: Entry) -> Path:
    if entry.kind == "alias":
        assert entry.path is not None
        return entry.path.parent / ".lock"
    hub_id = parse_hub_id(entry.name)
    assert hub_id is not None
    return repository_lock(hub_id)


def _is_locked(lock: Path | None) -> bool:
    if lock is None or not lock.exists():
        return False
    try:
        with FileLock(lock).acquire(timeout=0):
            return False
    except (Timeout, OSError):
        return True


def _removed(removal: Removal) -> Removal:
    if removal.path.is_dir() and not removal.path.is_symlink():
        shutil.rmtree(removal.path)
    else:
        removal.path.unlink(missing_ok=True)
    return removal
