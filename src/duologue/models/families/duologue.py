"""Our own architecture; `models/duologue_config.py` says what its settings mean."""

from __future__ import annotations

from duologue.models.duologue_config import ARCHITECTURE, duologue_spec
from duologue.models.families.family import LAYER_NAMES, QK_NORM_NAMES, Family

DUOLOGUE = Family(
    ARCHITECTURE,
    duologue_spec,
    {
        **LAYER_NAMES,
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "attention_post_norm": "post_attention_layernorm.weight",
        "mlp_post_norm": "post_feedforward_layernorm.weight",
        **QK_NORM_NAMES,
        "sinks": "self_attn.sinks",
    },
)
