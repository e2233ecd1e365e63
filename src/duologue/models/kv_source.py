"""The KV of a model by any of its names, read from as little as possible: a preset, a configuration or a GGUF file's metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.gguf_file import GgufFile, read_gguf_file
from duologue.models.gguf_spec import gguf_spec, runs_gguf
from duologue.models.hf_config import CONFIG_FILE
from duologue.models.kv_accounting import KvModel
from duologue.models.kv_config import kv_model_of_config, lenient_kv_model, not_run
from duologue.models.presets import preset
from duologue.models.source import resolve

PRESET_PREFIX = "duologue-"
# Architectures of GGUF files whose configurations call them otherwise.
_CONFIG_FAMILIES = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gpt-oss": "gpt_oss",
    "llama4": "llama4_text",
    "falcon-h1": "falcon_h1",
}
_CONFIG_NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "context_length": "max_position_embeddings",
}
# Entries of models whose KV is something else than keys and values of KV heads.
_OTHER_KV = (
    "ssm.state_size",
    "wkv.head_size",
    "shortconv.l_cache",
    "attention.kv_lora_rank",
    "attention.indexer.key_length",
    "attention.key_length_swa",
)


def kv_model(name: str, *, progress: bool = False) -> KvModel:
    """The KV of a preset (`duologue-13b`), an alias, a GGUF file, a Hugging Face folder or a `config.json`.

    Only an alias that was never used is fetched. Raises ModelLoadError or UnsupportedModelError saying what is wrong and where.
    """
    if name.startswith(PRESET_PREFIX) and not os.path.lexists(name):
        return KvModel.of_spec(name, preset(name.removeprefix(PRESET_PREFIX)))
    path = Path(os.path.expanduser(name))
    if path.suffix == ".json" and os.path.isfile(path):
        # Alone, it is best named after the folder that a model's files lie in.
        return _of_config(path, path.resolve().parent.name if path.name == CONFIG_FILE else path.stem)
    source = resolve(name, progress=progress)
    if source.path.is_dir():
        return _of_config(source.path / CONFIG_FILE, source.name)
    file = read_gguf_file(source.path)
    try:
        return _of_gguf(file, source.name)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{source.path}: {error}") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{source.path}: {error}") from error


def _of_gguf(file: GgufFile, name: str) -> KvModel:
    """As `kv_model_of_config`: the engine's spec of the file, another reading only where there is none."""
    refusals: tuple[str, ...] = ()
    if runs_gguf(file.metadata.get("general.architecture")):
        try:
            return KvModel.of_spec(name, gguf_spec(file))
        except UnsupportedModelError as error:
            refusals = (not_run(error),)
    return lenient_kv_model(_config_of_gguf(file.metadata), name, *refusals)


def _of_config(path: Path, name: str) -> KvModel:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from error
    except (ValueError, RecursionError) as error:  # also of bytes that are not UTF-8
        raise ModelLoadError(f"{path} is not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelLoadError(f"{path} is not a JSON object")
    try:
        return kv_model_of_config(config, name)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}") from error
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from error


def _config_of_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A GGUF file's metadata in the words of a `config.json`."""
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelLoadError("metadata entry general.architecture is missing")
    for other in _OTHER_KV:
        if metadata.get(f"{architecture}.{other}"):
            raise UnsupportedModelError(
                f"{architecture}.{other} is set, so its layers keep something else than KV of equal heads, which cannot be "
                f"counted from a GGUF file; give the model's {CONFIG_FILE}"
            )
    config = {
        name: metadata[f"{architecture}.{entry}"]
        for entry, name in _CONFIG_NAMES.items()
        if f"{architecture}.{entry}" in metadata
    }
    config["model_type"] = _CONFIG_FAMILIES.get(architecture, architecture)
    if not config.get("sliding_window"):  # 0 means none
        config["sliding_window"] = None
    elif architecture == "llama":
        config["model_type"] = "mistral"  # one window on all layers
    pattern = metadata.get(f"{architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        config["layer_types"] = ["sliding_attention" if local else "full_attention" for local in pattern]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern
    for name in ("num_attention_heads", "num_key_value_heads"):
        if isinstance(config.get(name), list) and len(set(config[name])) == 1:
            config[name] = config[name][0]
    return config
