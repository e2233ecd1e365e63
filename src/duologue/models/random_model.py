"""Small models with random weights: for tests, and for trying the engine without a download."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from duologue.models.checkpoint import Checkpoint, Weights, weight_shapes
from duologue.models.duologue_config import MODEL_TYPE, duologue_config
from duologue.models.families import FAMILIES
from duologue.models.hf_config import CONFIG_FILE
from duologue.models.hf_weights import WEIGHTS_FILE
from duologue.models.presets import preset
from duologue.models.random_tokenizer import random_tokenizer
from duologue.models.safetensors_file import Tensor, write_safetensors
from duologue.models.spec import LayerSpec, Mlp, ModelSpec

Dtype = Literal["float32", "float16", "bfloat16"]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def random_spec(
    *,
    architecture: str = "llama",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    head_dim: int = 16,
    mlp: int = 96,
    vocab: int = 320,
    context_tokens: int = 2048,
    windows: Sequence[int] | None = None,
    kv_owners: Sequence[int | None] | None = None,
    rope_base: float = 10000.0,
    local_rope_base: float | None = None,
    rope_factor: float = 1.0,
    tied_head: bool = False,
    softmax_scale: float | None = None,
    attention_softcap: float = 0.0,
    rope_divisors: Sequence[float] = (),
    qk_norm: bool = False,
    qkv_bias: bool = False,
    sinks: bool = False,
    post_norms: bool = False,
    mlp_kind: Mlp = Mlp.GATED_SILU,
    qkv_clamp: float = 0.0,
    mlp_clamp: float = 0.0,
    embedding_scale: float = 1.0,
    logit_softcap: float = 0.0,
    native_int8: bool = False,
) -> ModelSpec:
    """`windows` and `kv_owners` have one entry for each layer, as in LayerSpec; by default all layers are
    global and own their KV. With `local_rope_base`, local layers have this base and no factor, as Gemma 3's."""
    windows = [0] * layers if windows is None else windows
    kv_owners = [None] * layers if kv_owners is None else kv_owners
    made = []
    for window, owner in zip(windows, kv_owners, strict=True):
        apart = window > 0 and local_rope_base is not None
        made.append(
            LayerSpec(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                mlp_size=mlp,
                rope_base=local_rope_base if apart and local_rope_base else rope_base,
                window=window,
                kv_owner=owner,
                rope_factor=1.0 if apart else rope_factor,
                softmax_scale=softmax_scale,
                attention_softcap=attention_softcap,
                rope_divisors=() if apart else tuple(rope_divisors),
                qk_norm=qk_norm,
                qkv_bias=qkv_bias,
                sinks=sinks,
                post_norms=post_norms,
                mlp=mlp_kind,
                qkv_clamp=qkv_clamp,
                mlp_clamp=mlp_clamp,
            )
        )
    return ModelSpec(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        context_tokens=context_tokens,
        norm_eps=1e-5,
        tied_head=tied_head,
        layers=tuple(made),
        embedding_scale=embedding_scale,
        logit_softcap=logit_softcap,
        native_int8=native_int8,
    )


def random_weights(spec: ModelSpec, seed: int) -> Weights:
    """Weights whose logits spread over several units, so that argmax and sampling have something to
    decide."""
    generator = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in weight_shapes(spec).items():
        values = generator.standard_normal(shape, dtype=np.float32)
        if name.endswith(
            (".sinks", "_bias")
        ):  # beside scores, queries, keys and values that spread over a unit
            weights[name] = values
        elif len(shape) == 1:  # norms, around 1
            weights[name] = np.float32(1.0) + np.float32(0.1) * values
        elif name == "embedding":
            weights[name] = values * np.float32(3.0 / shape[1] ** 0.5 if spec.tied_head else 1.0)
        else:
            weights[name] = values * np.float32((3.0 if name == "head" else 1.0) / shape[1] ** 0.5)
    return weights


def random_checkpoint(spec: ModelSpec, seed: int = 0) -> Checkpoint:
    """A checkpoint in memory, without a tokenizer; also for specs that no file format here describes."""
    return Checkpoint(
        name="random", spec=spec, weights=random_weights(spec, seed), chat_template=CHAT_TEMPLATE
    )


def write_random_llama(
    folder: Path,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    head_dim: int = 16,
    mlp: int = 96,
    vocab: int = 320,
    context_tokens: int = 2048,
    rope_base: float = 10000.0,
    tied_head: bool = False,
    dtype: Dtype = "float32",
    seed: int = 0,
) -> Path:
    """Writes a Hugging Face folder that both `read_hf_folder` and transformers read; returns it.

    Raises ValueError when `vocab` is too small for all bytes and control tokens, or larger than there are
    merges.
    """
    spec = random_spec(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, head_dim=head_dim, mlp=mlp, vocab=vocab,
        context_tokens=context_tokens, rope_base=rope_base, tied_head=tied_head,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_llama(folder, spec, random_weights(spec, seed), dtype=dtype)
    write_random_tokenizer(folder, vocab)
    return folder


def write_random_duologue(
    folder: Path, model: str | ModelSpec, *, dtype: Dtype = "float32", seed: int = 0, **changes: Any
) -> Path:
    """Writes a folder with a random model of our own architecture, by preset name or spec; returns it.

    `changes` replace fields of the spec, such as `context_tokens`. Raises UnsupportedModelError for an unknown preset and
    ValueError as `duologue_config` and for a vocabulary that the tokenizer cannot have.
    """
    spec = preset(model) if isinstance(model, str) else model
    spec = dataclasses.replace(spec, architecture=MODEL_TYPE, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    write_random_tokenizer(folder, spec.vocab_size)
    write_folder(folder, duologue_config(spec), random_weights(spec, seed), dtype=dtype)
    return folder


def write_llama(folder: Path, spec: ModelSpec, weights: Weights, *, dtype: Dtype = "float32") -> None:
    """Writes `config.json` and `model.safetensors`; the spec's layers must be alike, global, and own their
    KV."""
    layer = spec.layers[0]
    plain = LayerSpec(layer.heads, layer.kv_heads, layer.head_dim, layer.mlp_size, layer.rope_base)
    if any(other != plain for other in spec.layers):
        raise ValueError("a Hugging Face Llama has one kind of layer, global and with KV of its own")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "intermediate_size": layer.mlp_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.context_tokens,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": layer.rope_base,
        "tie_word_embeddings": spec.tied_head,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    write_folder(folder, config, weights, dtype=dtype)


def write_folder(folder: Path, config: dict[str, Any], weights: Weights, *, dtype: Dtype = "float32") -> None:
    """Writes `config.json` and, named as its family names them, the weights."""
    family = FAMILIES[config["model_type"]]
    _write_json(folder / CONFIG_FILE, config)
    stored = {}
    for name, values in weights.items():
        source = family.source_name(name)
        offset = np.float32(family.norm_offset if source.endswith("norm.weight") else 0.0)
        stored[source] = _encode(values - offset if offset else values, dtype)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        write_safetensors(file, stored, {"format": "pt"})


def write_random_tokenizer(folder: Path, vocab: int) -> None:
    """Writes a tokenizer of so many ids, with ChatML's template and end of turn. Raises ValueError as
    `random_tokenizer`."""
    tokenizer, ids = random_tokenizer(vocab)
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(folder / "generation_config.json", {"eos_token_id": ids["<|im_end|>"]})


def _encode(values: npt.NDArray[np.float32], dtype: Dtype) -> Tensor:
    if dtype == "float32":
        return "F32", values.shape, values
    if dtype == "float16":
        return "F16", values.shape, values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return "BF16", values.shape, ((bits + nearest_even) >> np.uint32(16)).astype(np.uint16)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
