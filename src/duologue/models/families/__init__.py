"""The families of models that a Hugging Face folder may hold, by the `model_type` of its configuration."""

from __future__ import annotations

from collections.abc import Mapping

from duologue.models.families.duologue import DUOLOGUE
from duologue.models.families.family import Family
from duologue.models.families.gemma import GEMMA2, GEMMA3, GEMMA3_TEXT
from duologue.models.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3

__all__ = ["FAMILIES", "Family"]

FAMILIES: Mapping[str, Family] = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3_TEXT,
    "gemma3": GEMMA3,
    "duologue": DUOLOGUE,
}
