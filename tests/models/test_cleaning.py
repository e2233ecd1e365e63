"""What the cache folder holds, and what is removed from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from duologue.engine.load import prepare
from duologue.errors import ModelLoadError
from duologue.models.cleaning import prune, remove
from duologue.models.hub import fetch_from_hub, hub_folder, repository_lock
from duologue.models.hub_id import HubId
from duologue.models.inventory import Entry, find, inventory
from duologue.models.load import load_model
from duologue.models.store import remember_digest
from tests.models.hub_case import Hub

TINY = HubId("tiny-org/tiny")


def entry(name: str) -> Entry:
    [found] = find(name)
    return found


def files_below(folder: Path) -> list[str]:
    return sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"
    )


def test_an_empty_cache_knows_the_aliases(cache: Path) -> None:
    assert [(e.name, e.kind, e.path, e.packed) for e in inventory()] == [
        ("smollm2-135m", "alias", None, ()),
        ("gemma3-270m", "alias", None, ()),
    ]
    assert prune() == []
    with pytest.raises(ModelLoadError, match=r"there is no 'smollm2-135m' in .*; there is nothing"):
        remove("smollm2-135m")


def test_what_was_packed_of_a_folder_goes_and_the_folder_stays(cache: Path, tiny_model_dir: Path) -> None:
    model = load_model(tiny_model_dir, prepare)
    found = entry(tiny_model_dir.name)
    assert (found.kind, found.path, found.is_packed) == ("path", None, True)
    assert found.packed_bytes == found.packed[0].path.stat().st_size > 100_000
    assert found.packed[0].in_use
    with pytest.raises(ModelLoadError, match="is in use; stop the server"):
        remove(tiny_model_dir.name)
    del model
    assert not found.packed[0].in_use
    before = files_below(tiny_model_dir)
    [removal] = remove(tiny_model_dir.name)
    assert removal.size_bytes == found.packed_bytes
    assert list((cache / "packed").iterdir()) == []
    assert files_below(tiny_model_dir) == before


def test_a_hub_model_goes_with_what_was_packed_of_it(hub: Hub, cache: Path) -> None:
    load_model(TINY.repo, prepare)
    found = entry(TINY.repo)
    assert (found.kind, found.is_packed) == ("hub", True)
    size = sum(p.stat().st_size for p in hub.repositories[TINY.repo].folder.iterdir())
    assert found.source_bytes == size
    with (
        FileLock(repository_lock(TINY)),
        pytest.raises(ModelLoadError, match="being fetched by another process"),
    ):
        remove(TINY.repo)
    removed = remove(TINY.repo)
    assert sum(r.size_bytes for r in removed) == size + found.packed_bytes
    assert [name for name in files_below(cache) if not name.startswith("digests")] == ["hub/CACHEDIR.TAG"]


def test_two_ids_of_one_commit_keep_what_they_share(hub: Hub) -> None:
    path = fetch_from_hub(TINY)
    other = HubId(TINY.repo, hub.repositories[TINY.repo].commit)
    assert fetch_from_hub(other) == path
    remove(str(other))
    assert (path / "model.safetensors").is_file()
    assert entry(TINY.repo).path == path


def test_prune_takes_older_revisions_and_what_was_cut_off(hub: Hub, cache: Path) -> None:
    old = fetch_from_hub(TINY)
    repository = hub.repositories[TINY.repo]
    repository.commit = "2" * 40
    (repository.folder / "config.json").write_text((repository.folder / "config.json").read_text() + "\n")
    new = fetch_from_hub(TINY, refresh=True)
    blob = hub_folder() / "models--tiny-org--tiny" / "blobs" / "abc.incomplete"
    part = cache / "models" / "some-alias" / "x.gguf.part"
    temporary = cache / "packed" / ".abc.tmp"
    for path in (blob, part, temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    gone = cache / "gone"
    gone.write_bytes(b"")
    remember_digest(gone, "0")
    gone.unlink()
    before = files_below(cache)
    told = prune(dry_run=True)
    assert files_below(cache) == before
    reasons = {(r.path.name, r.reason) for r in told}
    assert {(p.name, "a download that was cut off") for p in (blob, part)} <= reasons
    assert (temporary.name, "a write that was cut off") in reasons
    assert (old.name, "an older revision") in reasons
    assert "about a file that is gone" in {r.reason for r in told}
    assert prune() == told
    assert prune() == []
    assert not old.exists()
    assert fetch_from_hub(TINY) == new


def test_prune_leaves_what_is_being_fetched(hub: Hub, cache: Path) -> None:
    fetch_from_hub(TINY)
    (hub_folder() / "models--tiny-org--tiny" / "blobs" / "abc.incomplete").write_bytes(b"half")
    part = cache / "models" / "some-alias" / "x.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    with FileLock(repository_lock(TINY)), FileLock(part.parent / ".lock"):
        assert prune() == []
    assert len(prune()) == 2


def test_a_removal_leaves_what_is_being_fetched_of_another_repository(hub: Hub, cache: Path) -> None:
    load_model(TINY.repo, prepare)
    other = HubId("tiny-org/other")
    blob = hub_folder() / "models--tiny-org--other" / "blobs" / "whole"
    snapshot = hub_folder() / "models--tiny-org--other" / "snapshots" / "c0"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"the first of two shards")
    snapshot.mkdir(parents=True)
    with FileLock(repository_lock(other)):
        remove(TINY.repo)
        prune()
        assert blob.is_file()
        assert snapshot.is_dir()
    prune()
    assert not blob.exists()
    assert not snapshot.exists()


def test_prune_takes_what_other_versions_packed(
    cache: Path, hub: Hub, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr("duologue.models.load.CALIBRATION_VERSION", 0)
        load_model(tiny_model_dir, prepare)
        held = load_model(TINY.repo, prepare)  # the same weights, so the same file
    load_model(tiny_model_dir, prepare)
    assert prune() == []  # one is current, the other in use
    del held
    [removal] = prune()
    assert removal.reason == "packed by another version"
    assert entry(TINY.repo).is_packed


def test_last_use_is_that_of_the_last_start(cache: Path, tiny_model_dir: Path) -> None:
    load_model(tiny_model_dir, prepare)
    [packed] = entry(tiny_model_dir.name).packed
    os.utime(packed.path, (0, 0))
    assert entry(tiny_model_dir.name).last_used_s == 0
    load_model(tiny_model_dir, prepare)
    assert (entry(tiny_model_dir.name).last_used_s or 0) > 1e9


def test_a_damaged_packed_file_is_listed_under_its_name(cache: Path) -> None:
    path = cache / "packed" / "abc.def.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no")
    assert find(path.name)[0].packed_bytes == 2
    assert [r.path for r in prune(dry_run=True)] == [path]
    remove(path.name)
    assert not path.exists()
