"""Small Llama models with random weights: for tests, and for trying the engine without a download.

The tokenizer is byte-level BPE over all 256 bytes, so that any text encodes, with a few merges and ChatML's
control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from duologue.models.checkpoint import Checkpoint, Weights, weight_shapes
from duologue.models.hf_checkpoint import CONFIG_FILE, WEIGHTS_FILE, source_name
from duologue.models.safetensors_file import Tensor, write_safetensors
from duologue.models.spec import LayerSpec, ModelSpec

Dtype = Literal["float32", "float16", "bfloat16"]

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def random_spec(
    *,
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
    tied_head: bool = False,
) -> ModelSpec:
    """`windows` and `kv_owners` have one entry for each layer, as in LayerSpec; by default all layers are
    global and own their KV."""
    windows = [0] * layers if windows is None else windows
    kv_owners = [None] * layers if kv_owners is None else kv_owners
    return ModelSpec(
        architecture="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        context_tokens=context_tokens,
        norm_eps=1e-5,
        tied_head=tied_head,
        layers=tuple(
            LayerSpec(heads, kv_heads, head_dim, mlp, rope_base, window, owner)
            for window, owner in zip(windows, kv_owners, strict=True)
        ),
    )


def random_weights(spec: ModelSpec, seed: int) -> Weights:
    """Weights whose logits spread over several units, so that argmax and sampling have something to
    decide."""
    generator = np.random.default_rng(seed)
    weights: Weights = {}
    for name, shape in weight_shapes(spec).items():
        values = generator.standard_normal(shape, dtype=np.float32)
        if len(shape) == 1:  # norms, around 1
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
    tokenizer, ids = _tokenizer(vocab)
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
    return folder


def write_llama(folder: Path, spec: ModelSpec, weights: Weights, *, dtype: Dtype = "float32") -> None:
    """Writes `config.json` and `model.safetensors`; the spec's layers must be alike, global, and own their
    KV."""
    layer = spec.layers[0]
    if any(other != layer for other in spec.layers) or layer.window or layer.kv_owner is not None:
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
    _write_json(folder / CONFIG_FILE, config)
    stored = {source_name(name): _encode(values, dtype) for name, values in weights.items()}
    with (folder / WEIGHTS_FILE).open("wb") as file:
        write_safetensors(file, stored, {"format": "pt"})


def _encode(values: npt.NDArray[np.float32], dtype: Dtype) -> Tensor:
    if dtype == "float32":
        return "F32", values.shape, values
    if dtype == "float16":
        return "F16", values.shape, values.astype(np.float16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    nearest_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return "BF16", values.shape, ((bits + nearest_even) >> np.uint32(16)).astype(np.uint16)


def _tokenizer(vocab_size: int) -> tuple[dict[str, object], dict[str, int]]:
    """A tokenizer.json and its ids: control tokens first, then bytes, then merged pairs of letters."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    symbols = [chr(b) for b in plain] + [chr(0x100 + i) for i in range(len(others))]
    space = chr(0x100 + others.index(0x20))
    firsts = space + _LETTERS + _LETTERS.upper()
    pairs = [(a, b) for a in firsts for b in _LETTERS]
    room = vocab_size - len(CONTROL_TOKENS) - len(symbols)
    if not 0 <= room <= len(pairs):
        low = len(CONTROL_TOKENS) + len(symbols)
        raise ValueError(f"vocab {vocab_size} must be between {low} and {low + len(pairs)}")
    merges = pairs[:room]
    texts = [*CONTROL_TOKENS, *symbols, *(a + b for a, b in merges)]
    ids = {text: i for i, text in enumerate(texts)}
    added = [
        {
            "id": ids[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for text in CONTROL_TOKENS
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": ids, "merges": [list(pair) for pair in merges],
        },
    }, ids  # fmt: skip


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
