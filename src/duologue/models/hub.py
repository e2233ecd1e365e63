"""Models from a Hugging Face hub, kept below the cache folder in the layout of `huggingface_hub`.

Which commit a name stands for is looked up once: a record of it makes later starts independent of the network, until `refresh`
asks again. What was interrupted is resumed; large files are checked against the hub's SHA-256.

`HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to `huggingface_hub`, which is imported only to fetch.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from duologue.errors import ModelLoadError
from duologue.models.hf_weights import INDEX_FILE, shard_names
from duologue.models.hub_id import HubId, model_files, parse_hub_id
from duologue.models.store import (
    CACHE_VARIABLE,
    cache_folder,
    file_digest,
    locked,
    make_folder,
    remember_digest,
    write_atomically,
)

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUE = ("1", "true", "yes", "on")
_log = logging.getLogger(__name__)


def hub_folder() -> Path:
    """Where repositories are kept."""
    return cache_folder() / "hub"


def record_path(hub_id: HubId) -> Path:
    """The record of what an id stands for."""
    return hub_folder() / "ids" / f"{quote(str(hub_id), safe='')}.json"


def repository_folder(hub_id: HubId) -> Path:
    """Where `huggingface_hub` keeps a repository's blobs and snapshots."""
    return hub_folder() / f"models--{hub_id.repo.replace('/', '--')}"


def repository_lock(hub_id: HubId) -> Path:
    """The lock that is held while something of a repository is fetched."""
    return hub_folder() / f".{quote(hub_id.repo, safe='')}.lock"


def records() -> Iterator[tuple[HubId, Path]]:
    """Every id that was fetched, with its path: a folder, or a GGUF file. Damaged records are left out."""
    for file in sorted((hub_folder() / "ids").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            hub_id = parse_hub_id(str(json.loads(file.read_text(encoding="utf-8"))["id"]))
            path = None if hub_id is None else recorded(hub_id)
            if hub_id is not None and path is not None:
                yield hub_id, path


def recorded(hub_id: HubId) -> Path | None:
    """Where the model is, if all that was fetched of it is still there."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(record_path(hub_id).read_text(encoding="utf-8"))
        snapshot = hub_folder() / str(record["snapshot"])
        if record["id"] == str(hub_id) and all((snapshot / name).is_file() for name in record["files"]):
            files = record["files"]
            first = str(files[0])
            return snapshot / first if first.lower().endswith(".gguf") else snapshot
    return None


def fetch_from_hub(hub_id: HubId, *, progress: bool = False, refresh: bool = False) -> Path:
    """Path of the model, a Hugging Face folder or a GGUF file, fetched unless it is there.

    `refresh` looks for a newer commit first. Several processes may call it at once: one downloads, the others wait. Raises
    ModelLoadError or UnsupportedModelError saying what failed (no such model, terms to accept, network, disk) and what to do.
    """
    if not refresh and (path := recorded(hub_id)) is not None:
        return path
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        raise ModelLoadError(
            f"{hub_id} is not in {hub_folder()}, and HF_HUB_OFFLINE forbids fetching it; unset that, or give a path"
        )
    folder = make_folder(hub_folder() / "ids").parent
    with (
        _named_errors(hub_id, folder),
        locked(repository_lock(hub_id), waiting=lambda: _log.info("another process fetches %s", hub_id)),
    ):
        there = None if refresh else recorded(hub_id)
        return there or _fetch_locked(hub_id, folder, progress)


def _fetch_locked(hub_id: HubId, folder: Path, progress: bool) -> Path:
    from huggingface_hub import HfApi, hf_hub_download
    from tqdm import tqdm

    api = HfApi(endpoint=_endpoint())
    sizes, digests, commit = _listing(api, hub_id)

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(
                *args, **{**options, "disable": None if progress else True}
            )  # None: on a terminal alone

    def download(name: str) -> Path:
        path = Path(
            hf_hub_download(
                hub_id.repo, name, revision=commit, cache_dir=folder, endpoint=_endpoint(), tqdm_class=Bar
            )
        )
        if name in digests:
            if file_digest(path) != digests[name]:
                path.resolve().unlink()
                raise ModelLoadError(
                    f"{name} of {hub_id} arrived damaged (its SHA-256 is not the hub's) and was removed; fetch it again"
                )
            remember_digest(path, digests[name])
        return path

    files = model_files(hub_id, sizes)
    path = first = download(files[0])
    for name in files[1:]:
        path = download(name)
    if files[-1] == INDEX_FILE:
        shards = sorted(_shards(hub_id, path, sizes))
        for name in shards:
            download(name)
        files += shards
    snapshot = Path(str(first)[: -len(files[0]) - 1])
    record = {
        "id": str(hub_id),
        "commit": commit,
        "snapshot": snapshot.relative_to(folder).as_posix(),
        "files": files,
    }

    def write(file: BinaryIO) -> None:
        file.write(json.dumps(record).encode())

    write_atomically(record_path(hub_id), write)
    return first if files[0].lower().endswith(".gguf") else snapshot


def _listing(api: HfApi, hub_id: HubId) -> tuple[dict[str, int], dict[str, str], str]:
    """Sizes in bytes and, of large files, SHA-256 by file name, and the commit."""
    info: Any = api.model_info(hub_id.repo, revision=hub_id.revision, files_metadata=True)
    sizes, digests = {}, {}
    for file in info.siblings or ():
        sizes[str(file.rfilename)] = int(file.size or 0)
        if file.lfs is not None:
            digests[str(file.rfilename)] = str(file.lfs.sha256)
    return sizes, digests, str(info.sha)


def _shards(hub_id: HubId, index: Path, sizes: dict[str, int]) -> set[str]:
    try:
        names = set(shard_names(json.loads(index.read_text(encoding="utf-8"))).values())
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{INDEX_FILE} of {hub_id} is not valid JSON ({error})") from error
    missing = sorted(names - sizes.keys())
    if missing:
        raise ModelLoadError(
            f"{INDEX_FILE} of {hub_id} names {missing[0]}, which the repository lacks; choose another revision"
        )
    return names


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or _DEFAULT_ENDPOINT


@contextmanager
def _named_errors(hub_id: HubId, folder: Path) -> Iterator[None]:
    """Errors of `huggingface_hub`, the network and the disk as ModelLoadError."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        told = _told(hub_id, folder, error)
        if told is None:
            raise
        raise ModelLoadError(told) from error


def _told(hub_id: HubId, folder: Path, error: Exception) -> str | None:
    from huggingface_hub import errors

    endpoint = _endpoint()
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{hub_id.repo} is gated: accept its terms at {endpoint}/{hub_id.repo} with an account, then set HF_TOKEN to "
            "a token of it, or run 'hf auth login'"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"there is no file or folder {hub_id.repo}, and no such model at {endpoint}, or it is private: check the name, "
            "or set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{hub_id.repo} has no branch, tag or commit {hub_id.revision!r} at {endpoint}; check what is behind the @"
    if isinstance(error, errors.HFValidationError):
        return (
            f"{hub_id} is not an id that a hub has ({error}); give ORG/NAME, or the path of a file or folder"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        return (
            f"{hub_id} cannot be fetched from {endpoint} (HTTP status {error.response.status_code}); try again later, "
            "or check HF_ENDPOINT and HF_TOKEN"
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk of {folder} is full; make room, or set {CACHE_VARIABLE} to another disk, and fetch {hub_id} again: "
            "what has arrived is kept"
        )
    if isinstance(error, PermissionError):
        return (
            f"{hub_id} cannot be stored in {folder} ({error.strerror}); "
            f"set {CACHE_VARIABLE} to a folder that can be written"
        )
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    if isinstance(error, (OSError, errors.EntryNotFoundError)) or "http" in type(root).__module__:
        reason = next(iter(str(root).strip().splitlines()), type(root).__name__)[:200]
        return (
            f"there is no file or folder {hub_id}, and as a model of {endpoint} it cannot be fetched, because the connection "
            f"failed ({reason}); check the network and HF_ENDPOINT, and try again: what has arrived is kept"
        )
    return None
