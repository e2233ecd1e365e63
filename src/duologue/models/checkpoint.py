"""A model as read from its source: a spec, float weights under canonical names, and what the dialogue layer needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from duologue.models.spec import ModelSpec

Weights = dict[str, npt.NDArray[np.float32]]
"""Canonical names, all float32, linear maps as [out, in], RoPE by halves:

embedding [vocab, hidden]; head [vocab, hidden] unless tied; final_norm [hidden];
layers.{i}.attention_norm, layers.{i}.mlp_norm [hidden];
layers.{i}.q, .k, .v, .output, .gate, .up, .down.
"""


@dataclass(frozen=True)
class Checkpoint:
    """A model read but not yet quantised.

    Exactly one of `tokenizer_metadata` (a GGUF file's key-value pairs) and `tokenizer_folder` (a Hugging Face folder) is set.
    """

    name: str
    spec: ModelSpec
    weights: Weights
    chat_template: str | None
    tokenizer_metadata: Mapping[str, object] = field(default_factory=dict)
    tokenizer_folder: Path | None = None
