"""The key file: what it holds, what is refused, and that it is never half written."""

from __future__ import annotations

import hashlib
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from duologue.api.keys import (
    MAX_FILE_BYTES,
    KeyEntry,
    KeyFileError,
    KeyRing,
    append_key,
    check_tenant,
    key_digest,
    new_key,
    read_key_file,
)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_lines_comments_and_several_keys_of_one_tenant(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(
        f"# ours\n\n{digest('one')} acme\n  {digest('two').upper()}\tacme  the second, for the app\r\n"
        f"{digest('three')} b.e_t-a # also a comment"
    )
    entries = read_key_file(file)
    assert [(entry.tenant, entry.comment) for entry in entries] == [
        ("acme", ""),
        ("acme", "the second, for the app"),
        ("b.e_t-a", "# also a comment"),
    ]
    ring = KeyRing(entries)
    assert len(ring) == 3
    assert ring.tenants == {"acme", "b.e_t-a"}
    assert [ring.tenant_of(key) for key in ("one", "two", "three")] == ["acme", "acme", "b.e_t-a"]
    for wrong in ("", "on", "one ", "ONE", digest("one"), "\udc80", "x" * 1_000_000):
        assert ring.tenant_of(wrong) is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"secret-key acme\n", "line 1: the first word is not a SHA-256"),
        (digest("a").encode()[:-1] + b" acme", "line 1: the first word is not a SHA-256"),
        (b"#\n" + digest("a").encode(), "line 2: no tenant"),
        (digest("a").encode() + b" -acme", "line 1: '-acme' cannot name a tenant"),
        (digest("a").encode() + b" " + b"a" * 65, "cannot name a tenant"),
        (
            f"{digest('a')} x\n{digest('b')} x\n{digest('a')} y".encode(),
            "line 3: the key is there already, in line 1",
        ),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"\n" * (MAX_FILE_BYTES + 1), "larger than"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(KeyFileError) as caught:
        read_key_file(file)
    assert says in str(caught.value)
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"nothing' cannot be read: no such file"):
        read_key_file(tmp_path / "nothing")


def test_new_keys_are_appended_and_work(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = [new_key() for _ in range(3)]
    for index, key in enumerate(keys):
        append_key(file, KeyEntry(key_digest(key), f"t{index}", "made by a test" if index else ""))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ring = KeyRing(read_key_file(file))
    assert [ring.tenant_of(key) for key in keys] == ["t0", "t1", "t2"]
    assert not any(key in file.read_text() for key in keys)
    assert list(tmp_path.iterdir()) == [file]


def test_appending_keeps_what_is_there(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text(f"# mine\n{digest('a')} acme last line without an end")
    real.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(real)
    append_key(link, KeyEntry(key_digest("b"), "acme"))
    assert link.is_symlink()
    assert real.read_text() == f"# mine\n{digest('a')} acme last line without an end\n{digest('b')} acme\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    with pytest.raises(KeyFileError, match="holds this key already"):
        append_key(link, KeyEntry(key_digest("b"), "other"))


def test_a_broken_file_is_not_added_to(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("nonsense\n")
    with pytest.raises(KeyFileError, match="line 1"):
        append_key(file, KeyEntry(key_digest("b"), "acme"))
    assert file.read_text() == "nonsense\n"
    with pytest.raises(KeyFileError, match="cannot be written"):
        append_key(tmp_path / "no" / "folder", KeyEntry(key_digest("b"), "acme"))


def test_a_comment_cannot_add_a_line(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="comment"):
        append_key(tmp_path / "keys", KeyEntry(key_digest("b"), "acme", f"x\n{digest('c')} root"))
    assert not (tmp_path / "keys").exists()


def test_a_comment_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="not valid UTF-8"):
        append_key(tmp_path / "keys", KeyEntry(key_digest("b"), "acme", "\udcff"))
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_a_regular_file_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    pipe, folder, loop = tmp_path / "pipe", tmp_path / "folder", tmp_path / "loop"
    os.mkfifo(pipe)
    folder.mkdir()
    loop.symlink_to(loop)
    for path, says in ((pipe, "not a regular file"), (folder, "folder'"), (loop, "symbolic links")):
        with pytest.raises(KeyFileError, match=says):
            read_key_file(path)
        with pytest.raises(KeyFileError, match=says):
            append_key(path, KeyEntry(key_digest("b"), "acme"))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert len(list(tmp_path.iterdir())) == 3


def test_keys_added_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: append_key(file, KeyEntry(key_digest(str(n)), f"t{n}")), range(40)))
    assert {entry.tenant for entry in read_key_file(file)} == {f"t{n}" for n in range(40)}


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "a\n", ".a", "ä", "a" * 65])
def test_names_that_cannot_be_tenants(name: str) -> None:
    with pytest.raises(KeyFileError, match="cannot name a tenant"):
        check_tenant(name)


def test_keys_are_unguessable_and_fit_a_header() -> None:
    keys = {new_key() for _ in range(1000)}
    assert len(keys) == 1000
    assert all(len(key) == 47 and key.isascii() and " " not in key for key in keys)
