from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from duologue.engine.load import load_for_engine, prepare
from duologue.errors import ModelLoadError
from duologue.models.checkpoint import Checkpoint
from duologue.models.load import PackedModel, Prepared, load_model
from duologue.models.store import CACHE_VARIABLE

ROOT = Path(__file__).parents[2]
LOAD = """
import sys
from pathlib import Path
from duologue.engine.load import prepare
from duologue.models.load import load_model
def noted(checkpoint):
    with open(sys.argv[2], "a") as file:
        file.write("prepared\\n")
    return prepare(checkpoint)
model = load_model(sys.argv[1], noted, progress=True)
print(model.name, model.weight_bytes, "gguf" in sys.modules, "duologue.models.calibrate" in sys.modules)
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "some-model"))


def never(checkpoint: Checkpoint) -> Prepared:
    raise AssertionError("the checkpoint was read again")


def packed_files(cache: Path) -> list[Path]:
    return sorted((cache / "packed").glob("*.safetensors"))


def assert_same(one: PackedModel, other: PackedModel) -> None:
    assert (one.spec, one.tokenizer, one.chat_template) == (other.spec, other.tokenizer, other.chat_template)
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert np.array_equal(array, other.arrays[name]), name


def test_the_second_start_reads_the_packed_file_alone(cache: Path, folder: Path) -> None:
    first = load_model(folder, prepare)
    assert first.name == "some-model"
    assert len(packed_files(cache)) == 1
    assert_same(load_model(folder, never), first)


def test_equal_files_elsewhere_share_the_packed_file_but_not_the_name(
    cache: Path, folder: Path, tmp_path: Path
) -> None:
    first = load_model(folder, prepare)
    other = shutil.copytree(folder, tmp_path / "other-name")
    second = load_model(other, never)
    assert second.name == "other-name"
    assert_same(second, first)


def test_a_changed_template_is_another_model(cache: Path, folder: Path) -> None:
    load_model(folder, prepare)
    (folder / "chat_template.jinja").write_text("changed")
    assert load_model(folder, prepare).chat_template == "changed"
    assert len(packed_files(cache)) == 2


@pytest.mark.parametrize("damage", ["truncated", "empty", "overwritten"])
def test_a_damaged_packed_file_is_made_anew(
    cache: Path, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_model(folder, prepare)
    [path] = packed_files(cache)
    content = path.read_bytes()
    path.write_bytes({"truncated": content[:-64], "empty": b"", "overwritten": b"\0" * len(content)}[damage])
    assert_same(load_model(folder, prepare), first)
    assert "is damaged" in caplog.text
    assert caplog.text.count("packed anew") == 1
    assert path.read_bytes() == content
    assert_same(load_model(folder, never), first)


def test_a_packed_file_with_a_tokenizer_of_another_format_is_made_anew(
    cache: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_for_engine(folder)
    [path] = packed_files(cache)
    content = path.read_bytes()
    other = b"DUOTOK99" + first.tokenizer[8:]
    changed = content
    sums = [f"{zlib.crc32(tokenizer):08x}".encode() for tokenizer in (first.tokenizer, other)]
    for old, new in ((first.tokenizer, other), (sums[0], sums[1])):
        assert changed.count(old) == 1
        changed = changed.replace(old, new)
    path.write_bytes(changed)
    assert_same(load_for_engine(folder), first)
    assert "the packed tokenizer is damaged or of another version; the model is packed anew" in caplog.text
    assert path.read_bytes() == content


def test_a_cache_that_cannot_be_written_is_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    model = load_model(folder, prepare)
    model.native()
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "the packed model is not cached" in record.getMessage()
    assert str(tmp_path / "file") in record.getMessage()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_cache_that_cannot_be_read_is_a_warning(
    cache: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_model(folder, prepare)
    cache.chmod(0)
    try:
        assert_same(load_model(folder, prepare), first)
    finally:
        cache.chmod(0o700)
    assert "the packed model is not cached (Permission denied)" in caplog.text


def test_what_a_killed_process_left_is_removed(cache: Path, folder: Path) -> None:
    load_model(folder, prepare)
    [path] = packed_files(cache)
    leftover = path.with_name(f".{path.name[:40]}.abc")
    leftover.write_bytes(b"half")
    path.unlink()
    load_model(folder, prepare)
    assert not leftover.exists()


def test_packed_files_of_other_versions_go_when_nobody_uses_them(cache: Path, folder: Path) -> None:
    load_model(folder, prepare)
    [path] = packed_files(cache)
    source = path.name.split(".")[0]
    old, fresh, other = (
        path.with_name(f"{name}.safetensors") for name in (f"{source}.old", f"{source}.new", "z.old")
    )
    for file in (old, fresh, other):
        file.write_bytes(b"")
    for file in (old, other):
        os.utime(file, (0, 0))
    path.unlink()
    load_model(folder, prepare)
    assert packed_files(cache) == sorted([path, fresh, other])
    os.utime(path, (0, 0))
    load_model(folder, prepare)
    assert path.stat().st_mtime > 0


def test_two_processes_at_once_pack_once_and_later_ones_import_little(
    cache: Path, folder: Path, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", LOAD, str(folder), str(tmp_path / "log")]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    results = [process.communicate(timeout=120) for process in [start(), start()]]
    # One of them packs, and says so.
    assert sorted(error for _, error in results) == ["", "Preparing some-model (once): may take minutes\n"]
    assert len({output.rsplit(" ", 2)[0] for output, _ in results}) == 1
    output, error = start().communicate(timeout=120)
    assert output.startswith("some-model ")
    assert output.endswith(" False False\n")
    assert error == ""
    assert (tmp_path / "log").read_text() == "prepared\n"


def test_a_model_that_cannot_be_read_is_one_error(cache: Path, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: its header"):
        load_model(folder, prepare)
    assert packed_files(cache) == []
