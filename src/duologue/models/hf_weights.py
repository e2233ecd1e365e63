"""The weights of a Hugging Face folder: one `model.safetensors`, or several files that an index names.

Only safetensors are read. A pickle (`pytorch_model.bin`) can run any code when it is opened, so it is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.safetensors_file import FLOAT_DTYPES, TensorEntry, read_floats, read_header

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the file that it is in."""

    path: Path
    entry: TensorEntry

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """Its values. Raises OSError, and UnsupportedModelError as `read_floats`."""
        return read_floats(self.path, name, self.entry)


def stored_tensors(folder: Path) -> Mapping[str, StoredTensor]:
    """Every tensor of a folder, by name; of an index those that it names.

    Raises ModelLoadError for a file that is missing, damaged or not what the index says, UnsupportedModelError when there are only
    pickles or a tensor is not of floats; OSError when a file cannot be read.
    """
    single = folder / WEIGHTS_FILE
    if single.is_file():
        found = _tensors_in(single)
    elif (folder / INDEX_FILE).is_file():
        found = _indexed(folder)
    else:
        raise _no_weights(folder)
    for name, tensor in found.items():
        if tensor.entry.dtype not in FLOAT_DTYPES and not name.endswith("rotary_emb.inv_freq"):
            raise UnsupportedModelError(
                f"tensor {name} is stored as {tensor.entry.dtype}; supported are {', '.join(FLOAT_DTYPES)}"
            )
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files with the folder's weights, the index first if there is one; those that are there, whatever is in them."""
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    try:
        names = sorted(set(_weight_map(folder).values()))
    except (OSError, ModelLoadError):
        names = []
    return [path for path in (folder / INDEX_FILE, *(folder / name for name in names)) if path.is_file()]


def shard_names(index: object) -> Mapping[str, str]:
    """The `weight_map` of an index: file names by tensor.

    Raises ModelLoadError where it is not such an index, or names a file that is not one beside it.
    """
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{INDEX_FILE} has no weight_map, so it says nothing of where tensors are")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or name != Path(name).name or "\\" in name or name in ("", ".", ".."):
            raise ModelLoadError(
                f"{INDEX_FILE} says that tensor {tensor} is in {name!r}, which is no name of a file in this folder"
            )
        if not name.endswith(".safetensors"):
            raise UnsupportedModelError(
                f"{INDEX_FILE} says that tensor {tensor} is in {name!r}; only .safetensors files are read"
            )
    return weight_map


def _weight_map(folder: Path) -> Mapping[str, str]:
    try:
        return shard_names(json.loads((folder / INDEX_FILE).read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{INDEX_FILE} is not valid JSON ({error})") from error


def _indexed(folder: Path) -> dict[str, StoredTensor]:
    weight_map = _weight_map(folder)
    shards: dict[str, dict[str, StoredTensor]] = {}
    for name in sorted(set(weight_map.values())):
        if not (folder / name).is_file():
            there = sum((folder / other).is_file() for other in set(weight_map.values()))
            raise ModelLoadError(
                f"{name} is missing ({there} of the {len(set(weight_map.values()))} files that {INDEX_FILE} names are there)"
            )
        shards[name] = _tensors_in(folder / name)
    found = {}
    for tensor, name in weight_map.items():
        if tensor not in shards[name]:
            raise ModelLoadError(f"{INDEX_FILE} says that tensor {tensor} is in {name}, but it is not there")
        found[tensor] = shards[name][tensor]
    return found


def _tensors_in(path: Path) -> dict[str, StoredTensor]:
    try:
        header = read_header(path)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path.name}: {error}") from error
    return {name: StoredTensor(path, entry) for name, entry in header.tensors.items()}


def _no_weights(folder: Path) -> ModelLoadError:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return UnsupportedModelError(
            f"the weights are a pickle ({pickles[0]}), which can run any code when it is read, so it is not; "
            f"only {WEIGHTS_FILE} is: save the model anew with save_pretrained(safe_serialization=True)"
        )
    return ModelLoadError(f"{WEIGHTS_FILE} is missing, and so is {INDEX_FILE}")
