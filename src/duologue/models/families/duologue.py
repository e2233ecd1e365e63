"""Our own architecture; `models/duologue_config.py` says what its settings mean."""

from __future__ import annotations

from duologue.models.duologue_config import ARCHITECTURE, duologue_spec
from duologue.models.families.family import LAYER_NAMES, Family

DUOLOGUE = Family(
    ARCHITECTURE,
    duologue_spec,
    {
        **LAYER_NAMES,
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "attention_post_norm": "post_attention_layernorm.weight",
        "mlp_post_norm": "post_feedforward_layernorm.weight",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
        "sinks": "self_attn.sinks",
    },
)
