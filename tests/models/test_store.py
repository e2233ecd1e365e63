from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from duologue.errors import ModelLoadError
from duologue.models import store


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def age(path: Path, by_s: float = 60) -> None:
    then_ns = path.stat().st_mtime_ns - int(by_s * 1e9)
    os.utime(path, ns=(then_ns, then_ns))


def test_the_cache_folder_follows_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(store.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert store.cache_folder() == tmp_path / "duologue"
    monkeypatch.setenv(store.CACHE_VARIABLE, "~/elsewhere")
    assert store.cache_folder() == Path.home() / "elsewhere"


def test_a_folder_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelLoadError, match=f"set {store.CACHE_VARIABLE} to a folder"):
        store.make_folder(tmp_path / "file" / "below")


def test_a_digest_is_computed_once_for_the_same_file(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"one")
    age(path)
    assert store.file_digest(path) == hashlib.sha256(b"one").hexdigest()
    # Contents replaced behind the clock's back show that the second answer came from the side file.
    stat = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert store.file_digest(path) == hashlib.sha256(b"one").hexdigest()
    age(path, -10)
    assert store.file_digest(path) == hashlib.sha256(b"two").hexdigest()
    path.write_bytes(b"longer")
    age(path)
    assert store.file_digest(path) == hashlib.sha256(b"longer").hexdigest()


def test_the_digest_of_a_file_that_just_changed_is_not_kept(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"one")
    store.file_digest(path)
    assert not list(cache.rglob("*.json"))


@pytest.mark.parametrize("content", ["", "{", "[1]", '[["x", 1, 2], 3, 4]', "null"])
def test_a_damaged_side_file_is_ignored(cache: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"one")
    age(path)
    store.file_digest(path)
    for side_file in cache.rglob("*.json"):
        side_file.write_text(content)
    assert store.file_digest(path) == hashlib.sha256(b"one").hexdigest()


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(store.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    path = tmp_path / "model"
    path.write_bytes(b"one")
    age(path)
    assert store.file_digest(path) == hashlib.sha256(b"one").hexdigest()


def test_names_count_in_the_digest_of_several_files(cache: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"same")
    digests = {
        store.files_digest([tmp_path / name for name in names])
        for names in (["a"], ["b"], ["a", "b"], ["b", "a"])
    }
    assert len(digests) == 4


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    store.write_atomically(path, lambda file: file.write(b"old") and None)

    def fail(file: BinaryIO) -> None:
        file.write(b"half of the new")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        store.write_atomically(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_write_leaves_nothing_half_and_its_rest_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    program = f"""
import os, signal, pathlib
from duologue.models.store import write_atomically
def write(file):
    file.write(b"half"); file.flush(); os.kill(os.getpid(), signal.SIGKILL)
write_atomically(pathlib.Path({str(path)!r}), write)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1
    other = tmp_path / ".files"
    other.touch()
    store.remove_leftovers(path)
    assert list(tmp_path.iterdir()) == [other]


def test_a_lock_keeps_others_out_and_tells_them(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    events: list[str] = []

    def second() -> None:
        with store.locked(path, waiting=lambda: events.append("waiting")):
            events.append("second")

    with store.locked(path):
        thread = threading.Thread(target=second)
        thread.start()
        deadline_s = time.monotonic() + 20
        while not events and time.monotonic() < deadline_s:
            time.sleep(0.01)
        events.append("first")
    thread.join()
    assert events == ["waiting", "first", "second"]
