"""A decoder described as data: what the executor needs to know about each layer, and what its KV costs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duologue.errors import UnsupportedModelError

MAX_HEAD_DIM = 256
# A RoPE table is made for every position; a damaged file must not ask for terabytes.
MAX_CONTEXT_TOKENS = 1 << 22


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer.

    `window` 0 means global attention, otherwise how many latest positions a query sees, its own included.
    `kv_owner` is the index of the layer whose KV this one reads; None means its own.
    Raises UnsupportedModelError naming the field that the executor cannot run.
    """

    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    rope_base: float
    window: int = 0
    kv_owner: int | None = None

    def __post_init__(self) -> None:
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads:
            raise UnsupportedModelError(f"heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.head_dim % 16 or not 16 <= self.head_dim <= MAX_HEAD_DIM:
            raise UnsupportedModelError(
                f"head_dim {self.head_dim} must be a multiple of 16 between 16 and {MAX_HEAD_DIM}"
            )
        if self.mlp_size < 16 or self.mlp_size % 16:
            raise UnsupportedModelError(f"mlp_size {self.mlp_size} must be a multiple of 16")
        if self.window < 0:
            raise UnsupportedModelError(f"window {self.window} must not be negative")
        if not (self.rope_base > 0 and math.isfinite(self.rope_base)):
            raise UnsupportedModelError(f"rope_base {self.rope_base} must be positive")

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of int8 keys, values and their fp32 scales that one position adds; 0 without KV of its
        own."""
        return self.kv_heads * (2 * self.head_dim + 2 * 4) if self.kv_owner is None else 0


@dataclass(frozen=True)
class ModelSpec:
    """A whole decoder; `layers` in order. Raises UnsupportedModelError naming the contradictory field."""

    architecture: str
    vocab_size: int
    hidden_size: int
    context_tokens: int
    norm_eps: float
    tied_head: bool
    layers: tuple[LayerSpec, ...]

    def __post_init__(self) -> None:
        if not self.layers:
            raise UnsupportedModelError("the model has no layers")
        for name in ("vocab_size", "hidden_size", "context_tokens"):
            if getattr(self, name) < 1:
                raise UnsupportedModelError(f"{name} {getattr(self, name)} must be positive")
        if self.context_tokens > MAX_CONTEXT_TOKENS:
            raise UnsupportedModelError(
                f"context_tokens {self.context_tokens} is more than {MAX_CONTEXT_TOKENS}"
            )
        if not 0 < self.norm_eps < 1:
            raise UnsupportedModelError(f"norm_eps {self.norm_eps} must be between 0 and 1")
        if self.hidden_size % 16:
            raise UnsupportedModelError(f"hidden_size {self.hidden_size} must be a multiple of 16")
        for i, layer in enumerate(self.layers):
            if layer.kv_owner is None:
                continue
            if not 0 <= layer.kv_owner < i:
                raise UnsupportedModelError(f"layer {i}: kv_owner {layer.kv_owner} is not an earlier layer")
            owner = self.layers[layer.kv_owner]
            if owner.kv_owner is not None or (owner.window, owner.kv_heads, owner.head_dim) != (
                layer.window,
                layer.kv_heads,
                layer.head_dim,
            ):
                raise UnsupportedModelError(
                    f"layer {i}: kv_owner {layer.kv_owner} owns no KV of the same window and shape"
                )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one position adds to the KV cache over all layers, windows not considered."""
        return sum(layer.kv_bytes_per_token for layer in self.layers)

    def to_json(self) -> str:
        """Canonical JSON: equal specs give equal text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """The inverse of `to_json`."""
        fields: Mapping[str, Any] = json.loads(text)
        layers = tuple(LayerSpec(**layer) for layer in fields["layers"])
        return cls(**{**fields, "layers": layers})
