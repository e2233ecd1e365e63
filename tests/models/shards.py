"""Cuts a folder's weights into several files with an index, as `save_pretrained` does with large models."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import load_file, save_file

from duologue.models.hf_weights import INDEX_FILE, WEIGHTS_FILE


def cut_into_shards(folder: Path, count: int = 3) -> list[str]:
    """Replaces `model.safetensors`; returns the names of the files."""
    tensors = load_file(folder / WEIGHTS_FILE)
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    weight_map = {tensor: names[i * count // len(tensors)] for i, tensor in enumerate(sorted(tensors))}
    for name in names:
        save_file({t: v for t, v in tensors.items() if weight_map[t] == name}, folder / name)
    index = {"metadata": {"total_size": sum(v.nbytes for v in tensors.values())}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index))
    (folder / WEIGHTS_FILE).unlink()
    return names
