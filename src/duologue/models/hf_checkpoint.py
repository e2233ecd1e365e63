"""A checkpoint from a Hugging Face folder: `config.json`, and weights as `hf_weights` finds them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import Checkpoint, StoredWeights, check_weights, weight_shapes
from duologue.models.families import FAMILIES, Family
from duologue.models.hf_config import CONFIG_FILE, HfConfig
from duologue.models.hf_weights import stored_tensors, weight_files
from duologue.models.spec import ModelSpec

CONFIG_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""What in a folder changes how the model answers beside its configuration and weights."""


def source_files(path: Path) -> list[Path]:
    """Everything in a folder that changes how the model answers; what the source digest covers."""
    named = [path / CONFIG_FILE, *weight_files(path), *(path / name for name in CONFIG_FILES)]
    return [file for file in named if file.is_file()]


def read_hf_folder(path: Path) -> Checkpoint:
    """Reads the description of a folder of one of the FAMILIES in fp32, fp16 or bf16; its weights are read when they are asked for.

    Raises ModelLoadError (missing, damaged, contradictory) or UnsupportedModelError (a feature that is not
    run), in one sentence that names the folder, what is wrong and what to do.
    """
    try:
        return _checkpoint(path)
    except (OSError, ModelLoadError) as error:
        raise _failed(path, error) from error


def _failed(path: Path, error: Exception) -> ModelLoadError:
    if isinstance(error, OSError):
        name = Path(error.filename).name if error.filename else "a file of weights"
        return ModelLoadError(f"{path}: {name} cannot be read ({error.strerror}); check the folder")
    if isinstance(error, UnsupportedModelError):
        return UnsupportedModelError(f"{path}: {error}; choose another model")
    return ModelLoadError(f"{path}: {error}; fetch or save the folder again")


def spec_from_config(values: dict[str, Any]) -> ModelSpec:
    """The spec that the object in a `config.json` describes, whatever weights there are.

    Raises ModelLoadError or UnsupportedModelError naming the setting.
    """
    return _family(values).spec(HfConfig(values))


def _checkpoint(path: Path) -> Checkpoint:
    values = _read_object(path, CONFIG_FILE)
    if values is None:
        raise ModelLoadError(f"{CONFIG_FILE} is missing")
    family = _family(values)
    spec = family.spec(HfConfig(values))
    tensors = stored_tensors(path)
    prefix = family.prefix(tensors)
    names = {name: family.source_name(name, prefix) for name in weight_shapes(spec)}
    head = family.source_name("head", prefix)
    # Old checkpoints keep a buffer that is computed from rope_theta; a tied one may repeat the embedding.
    found = {
        name: tensor.entry.shape
        for name, tensor in tensors.items()
        if not name.endswith("rotary_emb.inv_freq")
        and not (spec.tied_head and name == head)
        and not name.startswith(family.ignored)
    }
    check_weights(spec, names, found)

    def read(name: str) -> npt.NDArray[np.float32]:
        values = tensors[name].floats(name)
        if family.norm_offset and name.endswith("norm.weight"):
            values += np.float32(family.norm_offset)
        return values

    return Checkpoint(
        name=path.resolve().name,
        spec=spec,
        weights=StoredWeights(names, read, functools.partial(_failed, path)),
        chat_template=_chat_template(path),
        tokenizer_folder=path,
    )


def _family(values: dict[str, Any]) -> Family:
    """The family of a configuration, which must be for generating text and not quantised."""
    architectures = values.get("architectures") or []
    kind = values.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None or architectures not in ([], [family.architecture]):
        described = ", ".join(map(str, architectures)) if isinstance(architectures, list) else architectures
        raise UnsupportedModelError(
            f"{CONFIG_FILE} describes {described or kind}; "
            f"supported are {', '.join(f.architecture for f in FAMILIES.values())}"
        )
    HfConfig(values).require("quantization_config", None)
    return family


def _chat_template(path: Path) -> str | None:
    """`chat_template.jinja`, else the entry in tokenizer_config.json, of several the one named default."""
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{file.name} is not UTF-8") from error
    template = (_read_object(path, "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _read_object(path: Path, name: str) -> dict[str, Any] | None:
    try:
        content = json.loads((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{name} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{name} is not a JSON object")
    return content
