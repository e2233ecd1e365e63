"""What the cache folder holds: models as they came, what was packed of them, and what is left over."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from duologue.errors import ModelLoadError
from duologue.models.hold import only_user
from duologue.models.hub import hub_folder, records
from duologue.models.load import packed_key, versions_text
from duologue.models.registry import MODELS, WheelModel
from duologue.models.safetensors_file import read_header
from duologue.models.source import Source
from duologue.models.store import cache_folder

SOURCE_DIGITS = 24
"""Of a source's digest, as many begin the names of what was packed of it."""


@dataclass(frozen=True)
class Packed:
    """A packed file. `current`: this version of duologue reads it."""

    path: Path
    name: str
    key: str
    current: bool
    size_bytes: int
    last_used_s: float
    """Seconds since the epoch."""

    @property
    def in_use(self) -> bool:
        """Whether a running server, or any other process, has loaded it."""
        with only_user(self.path) as unused:
            return not unused


@dataclass(frozen=True)
class Entry:
    """A model by the name that loads it. `kind` is alias, hub, or path for what was packed of a file or folder of the user's, which
    is not in the cache itself. `path` is None unless the source is in the cache; `source_bytes` are those that it takes there."""

    name: str
    kind: str
    path: Path | None
    source_bytes: int
    packed: tuple[Packed, ...]
    alias: WheelModel | None = None

    @property
    def packed_bytes(self) -> int:
        return sum(packed.size_bytes for packed in self.packed)

    @property
    def is_packed(self) -> bool:
        """Whether the next start reads a packed file."""
        return any(packed.current for packed in self.packed)

    @property
    def last_used_s(self) -> float | None:
        """When it was loaded last; None if it never was."""
        return max((packed.last_used_s for packed in self.packed), default=None)


def inventory() -> list[Entry]:
    """Every alias, fetched or not, then every hub id, then what was packed of other files and folders."""
    packed = list(_packed_files())
    entries = []
    for alias in MODELS.values():
        path = cache_folder() / "models" / alias.alias / alias.file_name
        there = path if path.is_file() else None
        entries.append(
            Entry(alias.alias, "alias", there, size_of(path), tuple(_of(packed, alias.sha256)), alias)
        )
    for hub_id, path in records():
        with suppress(ModelLoadError):
            digest = Source(str(hub_id), path).digest()
            entries.append(Entry(str(hub_id), "hub", path, size_of(path), tuple(_of(packed, digest))))
    known = {file.path for entry in entries for file in entry.packed}
    others: dict[str, list[Packed]] = {}
    for file in packed:
        if file.path not in known:
            others.setdefault(source_of(file.path), []).append(file)
    entries += (Entry(files[-1].name, "path", None, 0, tuple(files)) for files in others.values())
    return entries


def find(name: str) -> list[Entry]:
    """The entries of this name: one, or several paths that end alike. Raises ModelLoadError naming what there is."""
    entries = [entry for entry in inventory() if entry.path is not None or entry.packed]
    found = [entry for entry in entries if entry.name == name]
    if not found:
        there = ", ".join(entry.name for entry in entries) or "nothing"
        raise ModelLoadError(f"there is no {name!r} in {cache_folder()}; there is {there}")
    return found


def source_of(path: Path) -> str:
    """The digits of its source's digest in a packed file's name."""
    return path.name.split(".")[0]


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count as what they lead to, once."""
    files = (
        [Path(parent, name) for parent, _, names in os.walk(path) for name in names]
        if path.is_dir()
        else [path]
    )
    return sum(file.stat().st_size for file in {file.resolve() for file in files} if file.exists())


def snapshots() -> dict[Path, bool]:
    """Every snapshot of a repository, and whether an id stands for it."""
    used = {path if path.is_dir() else _snapshot_of(path) for _, path in records()}
    return {path: path in used for path in hub_folder().glob("models--*/snapshots/*")}


def _snapshot_of(path: Path) -> Path:
    while path.parent.name != "snapshots" and path != path.parent:
        path = path.parent
    return path


def _of(packed: Iterable[Packed], digest: str) -> Iterator[Packed]:
    """Those of a source; whether they are of this version is certain here, since the source is known."""
    key = packed_key(digest)
    return (replace(f, current=f.key == key) for f in packed if source_of(f.path) == digest[:SOURCE_DIGITS])


def _packed_files() -> Iterator[Packed]:
    for path in sorted((cache_folder() / "packed").glob("*.safetensors")):
        try:
            stat = path.stat()
            metadata = read_header(path).metadata
        except OSError:
            continue  # removed since, or not ours to read
        except ModelLoadError:
            metadata = {"versions": "damaged"}
        # The first versions did not write this down; what cannot be told is kept.
        current = metadata.get("versions") in (None, versions_text())
        name, key = metadata.get("name", path.name), metadata.get("key", "")
        yield Packed(path, name, key, current, stat.st_size, stat.st_mtime)
