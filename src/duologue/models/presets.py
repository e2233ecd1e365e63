"""Sizes of our own architecture, from one for tests to the largest published.

What is published of the models that this architecture follows is their sizes (13B, 34B and 110B parameters), multi-query attention,
a window of 1,024 on all but one layer in six, KV shared by two to three neighbouring layers and by global layers across blocks,
int8 trained natively, and that activations were kept within bounds. Hidden sizes, depths, MLP widths, vocabulary, context and
bounds are not; ours are chosen near the published parameter counts, in multiples of the kernels' tiles and of whole blocks of six
layers, with heads of 128 and about 4 x hidden in the MLP. The smaller sizes are for training and measuring on a CPU: `135m`
has the width, depth, head size and vocabulary of SmolLM2-135M, and as many parameters, so that the two can be compared.

All presets share: one KV head; blocks of five local layers and a global one; local KV shared by up to three layers in a row, global
KV by three global layers; squared ReLU; a tied head; RoPE base 10,000 in windows, where positions are at most a window
apart, and 1,000,000 in global layers, whose context is 32 times longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from duologue.errors import UnsupportedModelError
from duologue.models.duologue_config import MODEL_TYPE, shared_owners
from duologue.models.spec import LayerSpec, Mlp, ModelSpec

BLOCK_LAYERS = 6
KV_SHARING = 3
WINDOW_TOKENS = 1024
CONTEXT_TOKENS = 32_768
LOCAL_ROPE_BASE, GLOBAL_ROPE_BASE = 10_000.0, 1_000_000.0

QKV_CLAMP = 8.0
"""Queries and keys of a normed stream are about 1 in size, so 8 touches outliers alone; but one outlier sets the step of its row's
int8 codes, which is thereby at most 8 / 127 in K and V."""

MLP_CLAMP = 4.0
"""The square spreads values: with codes from 0 to 127 for 0 to c^2, an activation below c / 16 becomes 0. At 4 that is a quarter of
the usual size of 1, at 8 it would be half of it; and the down projection's inputs stay within 16."""


@dataclass(frozen=True)
class Preset:
    """The sizes that presets differ in."""

    layers: int
    hidden: int
    heads: int
    head_dim: int
    mlp_size: int
    vocab: int = 49_152
    window: int = WINDOW_TOKENS
    context_tokens: int = CONTEXT_TOKENS

    def spec(self) -> ModelSpec:
        """The model's description."""
        local = [(i + 1) % BLOCK_LAYERS != 0 for i in range(self.layers)]
        owners = shared_owners(local, KV_SHARING, KV_SHARING)
        return ModelSpec(
            architecture=MODEL_TYPE,
            vocab_size=self.vocab,
            hidden_size=self.hidden,
            context_tokens=self.context_tokens,
            norm_eps=1e-5,
            tied_head=True,
            layers=tuple(
                LayerSpec(
                    heads=self.heads,
                    kv_heads=1,
                    head_dim=self.head_dim,
                    mlp_size=self.mlp_size,
                    rope_base=LOCAL_ROPE_BASE if is_local else GLOBAL_ROPE_BASE,
                    window=self.window if is_local else 0,
                    kv_owner=owner,
                    mlp=Mlp.RELU2,
                    qkv_clamp=QKV_CLAMP,
                    mlp_clamp=MLP_CLAMP,
                )
                for is_local, owner in zip(local, owners, strict=True)
            ),
            native_int8=True,
        )


PRESETS = {
    "1m": Preset(
        layers=6, hidden=128, heads=4, head_dim=32, mlp_size=512, vocab=512, window=128
    ),  # short: tests pass it
    "15m": Preset(layers=12, hidden=320, heads=5, head_dim=64, mlp_size=1280, vocab=8192),
    "135m": Preset(layers=30, hidden=576, heads=9, head_dim=64, mlp_size=2496),
    "1b": Preset(layers=24, hidden=2048, heads=16, head_dim=128, mlp_size=7168),
    "13b": Preset(layers=48, hidden=5120, heads=40, head_dim=128, mlp_size=20_480),
    "34b": Preset(layers=48, hidden=8192, heads=64, head_dim=128, mlp_size=34_816),
    "110b": Preset(layers=72, hidden=12_288, heads=96, head_dim=128, mlp_size=49_152),
}


def preset(name: str) -> ModelSpec:
    """The spec of a preset. Raises UnsupportedModelError listing the names for an unknown one."""
    if name not in PRESETS:
        raise UnsupportedModelError(f"there is no preset {name!r}; known are {', '.join(PRESETS)}")
    return PRESETS[name].spec()
