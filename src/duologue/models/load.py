"""From what a user typed to a packed model: from the packed cache, or read, calibrated and quantised."""

from __future__ import annotations

import ctypes
import glob
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError
from duologue.models.checkpoint import Checkpoint
from duologue.models.hold import Hold
from duologue.models.pack import (
    CALIBRATION_VERSION,
    PACKED_LAYOUT_VERSION,
    QUANTISER_VERSION,
    TOKENIZER_VERSION,
    pack_parts,
)
from duologue.models.packed_file import read_packed, write_packed
from duologue.models.packed_model import PackedModel
from duologue.models.source import Source, resolve
from duologue.models.store import cache_folder, locked, remove_leftovers

__all__ = ["PackedModel", "Prepared", "calibration_digest", "load_model", "packed_path"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What the dialogue layer makes of a checkpoint: the packed tokenizer, and the calibration text in its ids.

    The text is read in pieces of `calibrate.WINDOW_TOKENS`, each from position 0; where the model expects a token at the
    beginning of every text, the ids have it at the beginning of every piece.
    """

    tokenizer: bytes
    calibration_ids: npt.NDArray[np.int32]


Prepare = Callable[[Checkpoint], Prepared]
_OUTDATED_S = 7 * 86400.0
"""A packed file of another version that no start has read for so long is removed when the source is packed again."""
Check = Callable[[PackedModel], None]


def load_model(
    model: str | Path, prepare: Prepare, *, check: Check | None = None, progress: bool = False
) -> PackedModel:
    """A model by alias, GGUF path or Hugging Face folder.

    The first time it is read, calibrated, quantised and packed; `prepare` is called only then. Later starts
    read the packed cache; a cached model for which `check` raises ModelLoadError is packed anew. Two processes
    that start at once pack it once. A cache that cannot be written is a warning. Raises ModelLoadError or
    UnsupportedModelError, one sentence that says what is wrong and what to do.
    """
    source = resolve(model, progress=progress)
    key = packed_key(source.digest())
    path = packed_path(source.digest(), key)
    packed = _cached(path, key, check, tell=_log.debug)
    if packed is None:
        with _packing_lock(path, source):
            packed = _cached(path, key, check)
            if packed is None:
                remove_leftovers(path)
                packed = _pack_and_cache(source, prepare, path, key, progress)
                _remove_outdated(path)
                _give_memory_back()
    _mark_used(path)
    # The same weights may be reached under several names.
    return replace(packed, name=source.name, key=key, hold=Hold(path))


def calibration_digest() -> str:
    """Hex SHA-256 of the calibration text and chats that ship with the package."""
    data = Path(__file__).with_name("data")
    digest = hashlib.sha256()
    for name in ("calibration.txt", "calibration_chats.json"):
        digest.update((data / name).read_bytes())
    return digest.hexdigest()


def packed_path(source_digest: str, key: str) -> Path:
    """Where the packed model of a source is cached: versions of one source lie side by side."""
    return cache_folder() / "packed" / f"{source_digest[:24]}.{key[:40]}.safetensors"


def _mark_used(path: Path) -> None:
    with suppress(OSError):  # a cache that cannot be written is no reason to fail
        os.utime(path)


def _remove_outdated(path: Path) -> None:
    """Remove what other versions of duologue packed of the same source, unless one of them still uses it."""
    source = path.name.split(".")[0]
    for other in map(Path, glob.glob(f"{glob.escape(str(path.parent / source))}.*.safetensors")):
        with suppress(OSError):
            if other != path and time.time() - other.stat().st_mtime > _OUTDATED_S:
                other.unlink()
                other.with_suffix(".lock").unlink()


def versions_text() -> str:
    """All that makes of one source another packed model, in this version of duologue."""
    parts = (
        calibration_digest(),
        f"calibration {CALIBRATION_VERSION}",
        f"quantiser {QUANTISER_VERSION}",
        f"layout {PACKED_LAYOUT_VERSION}",
        f"tokenizer {TOKENIZER_VERSION}",
    )
    return "\n".join(parts)


def packed_key(source_digest: str) -> str:
    """What tells the packed model that this version makes of a source from all others."""
    return hashlib.sha256(f"{source_digest}\n{versions_text()}".encode()).hexdigest()


def _cached(
    path: Path, key: str, check: Check | None = None, *, tell: Callable[..., None] = _log.warning
) -> PackedModel | None:
    """The packed model, or None after `tell` is told what is wrong with the file there is."""
    if not os.path.exists(path):  # also in a folder that may not be read
        return None
    try:
        model = read_packed(path, key)
    except ModelLoadError as error:
        tell("%s; the model is packed anew", error)
        return None
    try:
        if check is not None:
            check(model)
    except ModelLoadError as error:
        tell("%s is damaged: %s; the model is packed anew", path, error)
        return None
    return model


def _pack_and_cache(source: Source, prepare: Prepare, path: Path, key: str, progress: bool) -> PackedModel:
    with _status(f"Preparing {source.name} (once)", progress) as tell:
        model = _pack(source, prepare, tell)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)  # says why there is no folder
            write_packed(path, model, key, versions=versions_text())
        except OSError as error:
            _log.warning(
                "the packed model is not cached (%s), so every start takes as long as this: make room in, "
                "or allow writing to, %s",
                error.strerror,
                path.parent,
            )
            return model
    del model  # or two of it would be in memory
    _give_memory_back()
    cached = _cached(path, key)
    if cached is None:
        raise ModelLoadError(f"what was just written to {path} reads back damaged; check that disk")
    return cached


def _pack(source: Source, prepare: Prepare, tell: Callable[[str], None]) -> PackedModel:
    checkpoint = source.read()
    prepared = prepare(checkpoint)
    # Imported here because a start from the packed cache does not need it.
    from duologue.models.calibrate import calibrated_parts

    layers = len(checkpoint.spec.layers)
    parts = calibrated_parts(
        checkpoint.spec,
        checkpoint.weights,
        prepared.calibration_ids,
        on_layer=lambda count: tell(f"layer {count} of {layers}"),
    )
    return PackedModel(
        name=source.name,
        spec=checkpoint.spec,
        arrays=pack_parts(checkpoint.spec, parts),
        tokenizer=prepared.tokenizer,
        chat_template=checkpoint.chat_template,
    )


def _give_memory_back() -> None:
    """Packing frees much that glibc keeps for later (290 MB for SmolLM2), but nothing comes later."""
    with suppress(OSError, AttributeError):  # other C libraries
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _packing_lock(path: Path, source: Source) -> Iterator[None]:
    """One process packs, the others wait for its file. Where no lock can be made, each packs for itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = locked(
            path.with_suffix(".lock"), waiting=lambda: _log.info("another process prepares %s", source.name)
        )
        lock.__enter__()
    except OSError as error:
        _log.debug("no lock at %s: %s", path, error)
        yield
        return
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


@contextmanager
def _status(text: str, progress: bool) -> Iterator[Callable[[str], None]]:
    """Shows `text`; what is yielded takes news to append to it."""
    import sys

    if not (progress and sys.stderr.isatty()):
        if progress:
            print(f"{text}: may take minutes", file=sys.stderr, flush=True)
        yield lambda news: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda news: status.update(f"{text}: {news}")
