"""Where a model comes from: an alias, a GGUF file, a Hugging Face folder or a hub id, told apart and digested."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from duologue.errors import ModelLoadError
from duologue.models.checkpoint import Checkpoint
from duologue.models.fetch import fetch
from duologue.models.hub_id import parse_hub_id
from duologue.models.registry import MODELS
from duologue.models.store import file_digest, files_digest

_HF_CONFIG = "config.json"


@dataclass(frozen=True)
class Source:
    """`name` is what users see; `path` is a GGUF file, or a folder with a config.json."""

    name: str
    path: Path

    def digest(self) -> str:
        """Hex SHA-256 of all that the model is made from. Raises ModelLoadError when it cannot be read."""
        try:
            if self.path.is_dir():
                from duologue.models.hf_checkpoint import source_files

                return files_digest(source_files(self.path))
            return file_digest(self.path)
        except OSError as error:
            raise ModelLoadError(
                f"{error.filename or self.path} cannot be read ({error.strerror}); check its permissions"
            ) from error

    def read(self) -> Checkpoint:
        """The float checkpoint. Raises ModelLoadError or UnsupportedModelError."""
        if self.path.is_dir():
            from duologue.models.hf_checkpoint import read_hf_folder

            return read_hf_folder(self.path)
        from duologue.models.gguf_checkpoint import read_gguf

        return read_gguf(self.path)


def resolve(model: str | Path, *, progress: bool = False) -> Source:
    """From what a user typed to a source that exists; an alias wins over a file, and a file over a hub id. Aliases and hub ids are
    fetched if need be.

    Raises ModelLoadError saying what was not found, with the aliases and near matches for a mere name.
    """
    if isinstance(model, str) and model in MODELS:
        return Source(model, fetch(MODELS[model], progress=progress))
    path = Path(os.path.expanduser(model))
    if os.path.isfile(path):
        return Source(path.name.removesuffix(".gguf"), path)
    if os.path.isdir(path):
        if not (path / _HF_CONFIG).is_file():
            ggufs = sorted(p.name for p in path.glob("*.gguf"))
            remedy = f"give the path of {ggufs[0]} in it" if ggufs else "give that of a .gguf file"
            raise ModelLoadError(
                f"{path} is a folder without a {_HF_CONFIG}, so not a Hugging Face model; {remedy}"
            )
        return Source(path.resolve().name, path)
    text = os.fspath(model)
    hub_id = parse_hub_id(text) if isinstance(model, str) else None
    if hub_id is not None:
        from duologue.models.hub import fetch_from_hub

        return Source(str(hub_id), fetch_from_hub(hub_id, progress=progress))
    if os.sep in text or text.endswith(".gguf"):
        raise ModelLoadError(f"there is no file or folder {path}; check the path")
    near = difflib.get_close_matches(text.lower(), MODELS, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    raise ModelLoadError(
        f"unknown model {text!r}: {meant}known names are {', '.join(MODELS)}; "
        "or give the path of a .gguf file or of a Hugging Face folder, or ORG/NAME of a model on the hub"
    )
