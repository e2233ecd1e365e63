"""A decoder described as data: what the executor needs to know about each layer, and what its KV costs."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duologue.errors import UnsupportedModelError

MAX_HEAD_DIM = 256
DOWN_GROUPS = 4
"""Groups of MLP channels with a scale of their own, in calibrated models."""
# A RoPE table is made for every position; a damaged file must not ask for terabytes.
MAX_CONTEXT_TOKENS = 1 << 22


class Mlp(str, enum.Enum):
    """What lies between a layer's second norm and its down projection."""

    GATED_SILU = "gated_silu"
    """silu(gate) * up"""
    GATED_GELU = "gated_gelu"
    """gelu(gate) * up, GELU in its tanh form"""
    RELU2 = "relu2"
    """max(up, 0)^2, without a gate"""

    @property
    def gated(self) -> bool:
        return self is not Mlp.RELU2


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer.

    `window` 0 means global attention, otherwise how many latest positions a query sees, its own included.
    `kv_owner` is the index of the layer whose KV this one reads; None means its own. `rope_factor` divides positions (linear RoPE
    scaling), `rope_divisors`, one for each pair of channels or none at all, the pairs' frequencies (Llama 3's scaling).
    `softmax_scale` None means head_dim ** -0.5. `attention_softcap` c > 0 bounds scores by c * tanh(score / c). `qkv_bias` adds a
    vector to queries, keys and values as they are projected. `qk_norm` puts an RMSNorm on every head of q and k before RoPE.
    `sinks` adds a learned logit per query head to the softmax's denominator. `post_norms` puts an RMSNorm on what attention and MLP
    add to the residual stream. `qkv_clamp` and `mlp_clamp` c > 0 keep the outputs of the projections before attention, and those
    before the MLP's activation, within [-c, c].
    Raises UnsupportedModelError naming the field that the executor cannot run.
    """

    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    rope_base: float
    window: int = 0
    kv_owner: int | None = None
    rope_factor: float = 1.0
    rope_divisors: tuple[float, ...] = ()
    softmax_scale: float | None = None
    attention_softcap: float = 0.0
    qk_norm: bool = False
    qkv_bias: bool = False
    sinks: bool = False
    post_norms: bool = False
    mlp: Mlp = Mlp.GATED_SILU
    qkv_clamp: float = 0.0
    mlp_clamp: float = 0.0

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
        for name in ("rope_base", "rope_factor", "softmax_scale"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UnsupportedModelError(f"{name} {value} must be positive")
        for name in ("attention_softcap", "qkv_clamp", "mlp_clamp"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise UnsupportedModelError(f"{name} {value} must not be negative")
        divisors = tuple(map(float, self.rope_divisors))  # from JSON they come as a list
        object.__setattr__(self, "rope_divisors", divisors)
        if divisors and len(divisors) != self.head_dim // 2:
            raise UnsupportedModelError(
                f"rope_divisors has {len(divisors)} entries, not head_dim / 2 = {self.head_dim // 2}"
            )
        if not all(value > 0 and math.isfinite(value) for value in divisors):
            raise UnsupportedModelError("rope_divisors must be positive")
        try:
            object.__setattr__(self, "mlp", Mlp(self.mlp))  # from JSON it comes as text
        except ValueError:
            known = ", ".join(kind.value for kind in Mlp)
            raise UnsupportedModelError(f"mlp {self.mlp!r} is not one of {known}") from None

    @property
    def score_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return self.head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of int8 keys, values and their fp32 scales that one position adds; 0 without KV of its
        own."""
        return self.kv_heads * (2 * self.head_dim + 2 * 4) if self.kv_owner is None else 0


@dataclass(frozen=True)
class ModelSpec:
    """A whole decoder; `layers` in order.

    Embeddings are multiplied by `embedding_scale`. `logit_softcap` c > 0 bounds logits by c * tanh(logit / c). `native_int8` says
    that the model was trained with the executor's own int8 arithmetic: its weights are quantised as they are, uncalibrated.
    Raises UnsupportedModelError naming the contradictory field.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    context_tokens: int
    norm_eps: float
    tied_head: bool
    layers: tuple[LayerSpec, ...]
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0
    native_int8: bool = False

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
        if not (self.embedding_scale > 0 and math.isfinite(self.embedding_scale)):
            raise UnsupportedModelError(f"embedding_scale {self.embedding_scale} must be positive")
        if not (self.logit_softcap >= 0 and math.isfinite(self.logit_softcap)):
            raise UnsupportedModelError(f"logit_softcap {self.logit_softcap} must not be negative")
        if self.hidden_size % 16:
            raise UnsupportedModelError(f"hidden_size {self.hidden_size} must be a multiple of 16")
        for i, layer in enumerate(self.layers):
            if layer.kv_owner is None:
                continue
            if not 0 <= layer.kv_owner < i:
                raise UnsupportedModelError(f"layer {i}: kv_owner {layer.kv_owner} is not an earlier layer")
            owner = self.layers[layer.kv_owner]
            if owner.kv_owner is not None:
                raise UnsupportedModelError(f"layer {i}: kv_owner {layer.kv_owner} has no KV of its own")
            for name in ("window", "kv_heads", "head_dim", "rope_base", "rope_factor", "rope_divisors"):
                mine, theirs = getattr(layer, name), getattr(owner, name)
                if mine != theirs:
                    raise UnsupportedModelError(
                        f"layer {i}: kv_owner {layer.kv_owner} is of another kind ({name} {theirs}, not {mine})"
                    )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one position adds to the KV cache over all layers, windows not considered."""
        return sum(layer.kv_bytes_per_token for layer in self.layers)

    def down_groups(self, index: int) -> int:
        """Into how many groups of channels the input of a layer's down projection is cut, each with a scale per token.

        One for a model trained in int8, and where groups would not be multiples of 16.
        """
        width = self.layers[index].mlp_size
        return 1 if self.native_int8 or width % (16 * DOWN_GROUPS) else DOWN_GROUPS

    def to_json(self) -> str:
        """Canonical JSON: equal specs give equal text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """The inverse of `to_json`."""
        fields: Mapping[str, Any] = json.loads(text)
        layers = tuple(LayerSpec(**layer) for layer in fields["layers"])
        return cls(**{**fields, "layers": layers})
