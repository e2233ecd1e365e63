"""A Llama checkpoint from a Hugging Face folder: `config.json` and one `model.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.checkpoint import Checkpoint, collect_weights, weight_shapes
from duologue.models.safetensors_file import read_floats, read_header
from duologue.models.spec import LayerSpec, ModelSpec

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
SOURCE_FILES = (
    CONFIG_FILE,
    WEIGHTS_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""Everything in a folder that changes how the model answers; what the source digest covers."""

_SOURCE_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "final_norm": "model.norm.weight",
}
_LAYER_NAMES = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def read_hf_folder(path: Path) -> Checkpoint:
    """Reads a folder with a LlamaForCausalLM in fp32, fp16 or bf16.

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


def _checkpoint(path: Path) -> Checkpoint:
    config = _read_object(path, CONFIG_FILE)
    if config is None:
        raise ModelLoadError(f"{CONFIG_FILE} is missing")
    spec = _spec(config)
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
    # Old checkpoints keep a buffer that is computed from rope_theta; a tied one may repeat the embedding.
    found = {
        name: entry.shape
        for name, entry in header.tensors.items()
        if not name.endswith("rotary_emb.inv_freq") and not (spec.tied_head and name == _SOURCE_NAMES["head"])
    }
    names = {name: source_name(name) for name in weight_shapes(spec)}
    weights = collect_weights(
        spec, names, found, lambda name: read_floats(weights_path, name, header.tensors[name])
    )
    return Checkpoint(
        name=path.resolve().name,
        spec=spec,
        weights=weights,
        chat_template=_chat_template(path),
        tokenizer_folder=path,
    )


def source_name(name: str) -> str:
    """The name in a Llama safetensors file of a canonical weight name."""
    if not name.startswith("layers."):
        return _SOURCE_NAMES[name]
    _, index, part = name.split(".")
    return f"model.layers.{index}.{_LAYER_NAMES[part]}.weight"


def _spec(config: Mapping[str, Any]) -> ModelSpec:
    architectures = config.get("architectures") or []
    if config.get("model_type") != "llama" or architectures not in ([], ["LlamaForCausalLM"]):
        raise UnsupportedModelError(
            f"{CONFIG_FILE} describes {', '.join(map(str, architectures)) or config.get('model_type')}; "
            "supported is LlamaForCausalLM"
        )
    _refuse(config, "attention_bias", False)
    _refuse(config, "mlp_bias", False)
    _refuse(config, "hidden_act", "silu")
    _refuse(config, "quantization_config", None)
    hidden = _number(config, "hidden_size", 4096, int)
    heads = _number(config, "num_attention_heads", 32, int)
    if heads < 1:
        raise ModelLoadError(f"{CONFIG_FILE}: num_attention_heads is {heads}")
    layer = LayerSpec(
        heads=heads,
        kv_heads=_number(config, "num_key_value_heads", heads, int),
        head_dim=_number(config, "head_dim", hidden // heads, int),
        mlp_size=_number(config, "intermediate_size", 11008, int),
        rope_base=_rope_base(config),
    )
    return ModelSpec(
        architecture="llama",
        vocab_size=_number(config, "vocab_size", 32000, int),
        hidden_size=hidden,
        context_tokens=_number(config, "max_position_embeddings", 2048, int),
        norm_eps=_number(config, "rms_norm_eps", 1e-6, float),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        layers=(layer,) * _number(config, "num_hidden_layers", 32, int),
    )


def _rope_base(config: Mapping[str, Any]) -> float:
    """From `rope_parameters` (newer) or `rope_theta` and `rope_scaling`; all but plain RoPE is refused."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if rope is None:
            continue
        if not isinstance(rope, dict):
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {rope!r}, not an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise UnsupportedModelError(
                f"RoPE scaling of type {kind!r} ({name} in {CONFIG_FILE}) is not supported"
            )
        if rope.get("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(f"partial_rotary_factor ({name} in {CONFIG_FILE}) is not supported")
        if "rope_theta" in rope:
            return float(_number(rope, "rope_theta", 10000.0, float))
    return float(_number(config, "rope_theta", 10000.0, float))


def _refuse(config: Mapping[str, Any], name: str, supported: object) -> None:
    value = config.get(name, supported)
    if value != supported:
        shown = value if isinstance(value, (str, bool, int, float)) else "set"
        raise UnsupportedModelError(f"{name} = {shown!r} in {CONFIG_FILE} is not supported")


def _number(config: Mapping[str, Any], name: str, default: Any, kind: type) -> Any:
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
        raise ModelLoadError(
            f"{CONFIG_FILE}: {name} is {value!r}, not a {'' if kind is float else 'whole '}number"
        )
    return kind(value)


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
