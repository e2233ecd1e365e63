"""Write a GGUF model as a Hugging Face folder in bf16, for peers that read no GGUF (vLLM, transformers).

    python scripts/peers/smollm2_hf.py smollm2-135m FOLDER

The weights are the dequantised ones of the GGUF file, rounded to bf16: the same model as the one that we serve. Only byte-level BPE
with SmolLM2's pre-tokenizer is written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from duologue.dialogue.tokenizer import Tokenizer
from duologue.models.gguf_checkpoint import read_gguf
from duologue.models.random_model import write_llama
from duologue.models.source import resolve

_CONTROL, _USER_DEFINED = 3, 4


def tokenizer_json(metadata: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json from GGUF's `tokenizer.ggml.*`."""
    kind, pre = metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"]
    if (kind, pre) != ("gpt2", "smollm"):
        sys.exit(f"only SmolLM2's tokenizer can be written, not {kind} with {pre}")
    tokens = [str(token) for token in metadata["tokenizer.ggml.tokens"]]
    types = [int(kind) for kind in metadata["tokenizer.ggml.token_type"]]
    merges = [str(merge).split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": kind == _CONTROL,
            }
            for i, (text, kind) in enumerate(zip(tokens, types, strict=True))
            if kind in (_CONTROL, _USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(tokens)}, "merges": merges,
        },
    }  # fmt: skip


def write_folder(gguf: Path, folder: Path) -> None:
    """Writes everything that a peer needs to serve chats; `folder` is created."""
    checkpoint = read_gguf(gguf)
    metadata = dict(checkpoint.tokenizer_metadata)
    folder.mkdir(parents=True, exist_ok=True)
    write_llama(folder, checkpoint.spec, dict(checkpoint.weights), dtype="bfloat16")
    tokenizer = Tokenizer.from_gguf_metadata(metadata)
    spelling = {i: text for text, i in tokenizer.special_tokens.items()}
    assert tokenizer.eos_id is not None
    eos = spelling[tokenizer.eos_id]
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    config = json.loads((folder / "config.json").read_text())
    _write(folder / "config.json", config | ids)
    _write(folder / "generation_config.json", {"eos_token_id": sorted(tokenizer.eos_ids)})
    _write(folder / "tokenizer.json", tokenizer_json(metadata))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": spelling.get(tokenizer.bos_id) if tokenizer.bos_id is not None else None,
            "eos_token": eos,
            "model_max_length": checkpoint.spec.context_tokens,
            "clean_up_tokenization_spaces": False,
            "chat_template": checkpoint.chat_template,
        },
    )


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_folder(resolve(sys.argv[1]).path, Path(sys.argv[2]))
