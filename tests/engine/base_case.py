"""A random model as base models come: without a chat template."""

from __future__ import annotations

import json
from pathlib import Path

from duologue.models.random_model import write_random_llama


def base_model(folder: Path, **config: object) -> Path:
    """A random model whose tokenizer_config.json has these entries and no chat template."""
    write_random_llama(folder, seed=5)
    path = folder / "tokenizer_config.json"
    entries = {**json.loads(path.read_text(encoding="utf-8")), **config}
    del entries["chat_template"]
    path.write_text(json.dumps(entries), encoding="utf-8")
    return folder
