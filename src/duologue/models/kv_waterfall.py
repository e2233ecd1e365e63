"""From the KV of multi-head attention in fp16 to that of a model in the engine's cache, one technique after the other.

Each step is what one dialogue would keep if the techniques up to it were used and no others. Up to int8 it is counted in
positions; the last two steps are pages as they are allocated, so the first of them costs something: pages are whole, and a dialogue
that can be gone on with, edited and regenerated keeps more than one window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from duologue.cache.resident import DialogueShape
from duologue.models.kv_accounting import KvLayer, KvModel

GROUPED_KV_HEADS = 8
"""What grouped-query models from 7B up mostly have, however many query heads; multi-query attention is 8 times below."""

GROUPED = "grouped"
_FP16_BYTES = 2


@dataclass(frozen=True)
class Step:
    """`key` names the step in JSON, `label` to people; `total_bytes` are of one dialogue."""

    key: str
    label: str
    total_bytes: int


@dataclass(frozen=True)
class Waterfall:
    """Steps in order."""

    steps: tuple[Step, ...]

    def factor_of_step(self, number: int) -> float:
        """How many times smaller a step is than the one before it; below 1 where it is larger."""
        return self._factor(max(0, number - 1), number)

    def factor_of_first(self, number: int) -> float:
        """How many times smaller than multi-head attention in fp16."""
        return self._factor(0, number)

    def factor_of_grouped(self, number: int) -> float:
        """How many times smaller than grouped heads in fp16, every layer global."""
        return self._factor([step.key for step in self.steps].index(GROUPED), number)

    def _factor(self, one: int, other: int) -> float:
        return self.steps[one].total_bytes / self.steps[other].total_bytes


def grouped_kv_heads(layer: KvLayer) -> int:
    """KV heads of a layer in a grouped-query model: 8, or fewer where 8 does not divide the query heads, or this model's own if it
    has more."""
    divisors = [count for count in range(1, GROUPED_KV_HEADS + 1) if layer.heads % count == 0]
    own = 1 if layer.head_width is not None else layer.kv_heads  # a latent is no KV head
    return max(divisors[-1], own)


def waterfall(model: KvModel, shape: DialogueShape) -> Waterfall:
    """Every step for one dialogue. Which KV heads "grouped" stands for: `grouped_kv_heads`."""
    tokens, every = shape.tokens, model.layers
    dialogue = model.dialogue(shape)

    def held(layers: Iterable[KvLayer], bytes_of: Callable[[KvLayer], int], *, windows: bool) -> int:
        return sum(
            bytes_of(layer) * (min(tokens, layer.window) if windows and layer.window else tokens)
            for layer in layers
        )

    def fp16(layer: KvLayer) -> int:
        return _FP16_BYTES * layer.kept_values

    grouped = sorted({grouped_kv_heads(layer) for layer in every})
    own = sorted({layer.kv_heads for layer in every})
    latent = any(layer.head_width is not None for layer in every)
    return Waterfall(
        (
            Step(
                "multi_head",
                "multi-head, fp16, all global",
                held(every, lambda layer: _FP16_BYTES * layer.heads * layer.width, windows=False),
            ),
            Step(
                GROUPED,
                f"grouped: {_counted(grouped)}",
                held(every, lambda layer: _FP16_BYTES * grouped_kv_heads(layer) * layer.width, windows=False),
            ),
            Step(
                "kv_heads",
                "this model's latent" if latent else f"this model: {_counted(own)}",
                held(every, fp16, windows=False),
            ),
            Step("windows", "windows", held(every, fp16, windows=True)),
            Step("sharing", "shared by layers", held(model.owners, fp16, windows=True)),
            Step(
                "int8",
                "int8, with scales",
                held(model.owners, lambda layer: layer.int8_bytes, windows=True),
            ),
            Step("retained", "pages and kept windows", dialogue.total_bytes),
            Step("checkpoints", "sparse checkpoints", dialogue.total_bytes + dialogue.checkpoint_bytes),
        )
    )


def _counted(heads: list[int]) -> str:
    texts = ", ".join(map(str, heads))
    return f"{texts} KV head{'' if heads == [1] else 's'}"
