"""A checkpoint from a Hugging Face folder: `config.json` and one `model.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import Checkpoint, collect_weights, weight_shapes
from duologue.models.families import FAMILIES, Family
from duologue.models.hf_config import CONFIG_FILE, HfConfig
from duologue.models.safetensors_file import read_floats, read_header
from duologue.models.spec import ModelSpec

WEIGHTS_FILE = "model.safetensors"
SOURCE_FILES = (
    CONFIG_FILE,
    WEIGHTS_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""Everything in a folder that changes how the model answers; what the source digest covers."""


def read_hf_folder(path: Path) -> Checkpoint:
    """Reads a folder of one of the FAMILIES in fp32, fp16 or bf16.

    Raises ModelLoadError (missing, damaged, contradictory) or UnsupportedModelError (a feature that is not
    run), in one sentence that names the folder, what is wrong and what to do.
    """
    try:
        return _checkpoint(path)
    except OSError as error:
        raise ModelLoadError(
            f"{path}: {error.filename or WEIGHTS_FILE} cannot be read ({error.strerror}); check the folder"
        ) from error
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}; choose another model") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}; fetch or save the folder again") from error


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
    weights_path = path / WEIGHTS_FILE
    if not weights_path.is_file():
        if (path / f"{WEIGHTS_FILE}.index.json").exists():
            raise UnsupportedModelError(
                f"weights in several files are not supported, only one {WEIGHTS_FILE}"
            )
        raise ModelLoadError(f"{WEIGHTS_FILE} is missing")
    try:
        header = read_header(weights_path)
    except ModelLoadError as error:
        raise ModelLoadError(f"{WEIGHTS_FILE}: {error}") from error
    prefix = family.prefix(header.tensors)
    names = {name: family.source_name(name, prefix) for name in weight_shapes(spec)}
    head = family.source_name("head", prefix)
    # Old checkpoints keep a buffer that is computed from rope_theta; a tied one may repeat the embedding.
    found = {
        name: entry.shape
        for name, entry in header.tensors.items()
        if not name.endswith("rotary_emb.inv_freq")
        and not (spec.tied_head and name == head)
        and not name.startswith(family.ignored)
    }

    def read(name: str) -> npt.NDArray[np.float32]:
        values = read_floats(weights_path, name, header.tensors[name])
        if family.norm_offset and name.endswith("norm.weight"):
            values += np.float32(family.norm_offset)
        return values

    return Checkpoint(
        name=path.resolve().name,
        spec=spec,
        weights=collect_weights(spec, names, found, read),
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
    except ValueError as error:
        raise ModelLoadError(f"{name} is not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{name} is not a JSON object")
    return content
