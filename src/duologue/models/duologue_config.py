"""Our own architecture's `config.json`: read into a ModelSpec, and written from one.

Settings have the names of Hugging Face configurations where these have one. Beside the sizes (`vocab_size`, `hidden_size`,
`intermediate_size`, `num_hidden_layers`, `num_attention_heads`, `head_dim`, `max_position_embeddings`), which are required:

    num_key_value_heads     1: multi-query attention
    sliding_window          1024: latest positions that a local layer's query sees, its own included
    sliding_window_pattern  6: the last layer of each block of so many is global
    layer_types             null; or "sliding_attention" or "full_attention" for each layer, instead of the pattern
    kv_sharing_local        1: local layers in a row, without a global one between, that read the KV of the first of them
    kv_sharing_global       1: global layers in a row, local ones between not counted, that read the KV of the first of them
    kv_owners               null; or for each layer null (its own KV) or the layer whose KV it reads, instead of sharing
    rope_theta              1000000.0, of global layers; rope_scaling {"type": "linear", "factor": f} is theirs too
    rope_local_base_freq    10000.0, of local layers; or rope_parameters with an object for each type of layer
    hidden_act              "relu2": squared ReLU without a gate; "silu" and "gelu_pytorch_tanh" are gated
    qkv_clamp, mlp_clamp    null: bounds of what the q, k and v projections, and those before the activation, put out
    qk_norm, post_norms     false
    attention_sinks         false
    attention_multiplier    null: head_dim ** -0.5; what scores are multiplied by
    attn_logit_softcapping, final_logit_softcapping   null
    embedding_multiplier    1.0
    rms_norm_eps            1e-5
    tie_word_embeddings     true
    native_int8             true: trained in the executor's int8 arithmetic, so quantised as it is

Any other setting is left alone, but biases, dropout of layers and the like do not exist: a tensor without a place is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.hf_config import CONFIG_FILE, GLOBAL, LOCAL, HfConfig
from duologue.models.spec import LayerSpec, Mlp, ModelSpec

ARCHITECTURE, MODEL_TYPE = "DuologueForCausalLM", "duologue"
_ACTIVATIONS = {"relu2": Mlp.RELU2, "silu": Mlp.GATED_SILU, "gelu_pytorch_tanh": Mlp.GATED_GELU}
_BY_KIND = ("window", "rope_base", "rope_factor")  # what local and global layers differ in


def duologue_spec(config: HfConfig) -> ModelSpec:
    """Raises ModelLoadError or UnsupportedModelError naming the setting."""
    count = config.layers()
    local = config.local_layers(count, config.integer("sliding_window_pattern", 6))
    if config.values.get("kv_owners") is None:
        owners = shared_owners(
            local, config.count("kv_sharing_local", 1), config.count("kv_sharing_global", 1)
        )
    else:
        owners = _explicit_owners(config.layer_list("kv_owners", count))
    activation = config.values.get("hidden_act", "relu2")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"hidden_act = {activation!r} in {CONFIG_FILE} is not supported ({', '.join(_ACTIVATIONS)} are)"
        )
    head_dim = config.count("head_dim")
    ropes = config.rope_by_kind(1_000_000.0, 10_000.0)
    layers = []
    for is_local, window, owner in zip(local, config.windows(local, 1024), owners, strict=True):
        rope = ropes[0 if is_local else 1]
        layers.append(
            LayerSpec(
                heads=config.count("num_attention_heads"),
                kv_heads=config.count("num_key_value_heads", 1),
                head_dim=head_dim,
                mlp_size=config.count("intermediate_size"),
                rope_base=rope.base,
                rope_factor=rope.factor,
                window=window,
                kv_owner=owner,
                softmax_scale=config.bound("attention_multiplier") or None,
                attention_softcap=config.bound("attn_logit_softcapping"),
                qk_norm=config.flag("qk_norm", False),
                sinks=config.flag("attention_sinks", False),
                post_norms=config.flag("post_norms", False),
                mlp=_ACTIVATIONS[activation],
                qkv_clamp=config.bound("qkv_clamp"),
                mlp_clamp=config.bound("mlp_clamp"),
            )
        )
    return ModelSpec(
        architecture=MODEL_TYPE,
        vocab_size=config.count("vocab_size"),
        hidden_size=config.count("hidden_size"),
        context_tokens=config.count("max_position_embeddings"),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        tied_head=config.flag("tie_word_embeddings", True),
        layers=tuple(layers),
        embedding_scale=config.positive("embedding_multiplier", 1.0),
        logit_softcap=config.bound("final_logit_softcapping"),
        native_int8=config.flag("native_int8", True),
    )


def duologue_config(spec: ModelSpec) -> dict[str, Any]:
    """The configuration that `duologue_spec` reads as this spec, its layers spelled out one by one.

    Raises ValueError naming the field when layers differ in more than type and KV owner, which no configuration says.
    """
    kinds: dict[bool, LayerSpec] = {}
    for layer in spec.layers:
        kinds.setdefault(layer.window > 0, layer)
    some_local, some_global = kinds.get(True), kinds.get(False)
    first = spec.layers[0]
    for i, layer in enumerate(spec.layers):
        for field in dataclasses.fields(LayerSpec):
            like = kinds[layer.window > 0] if field.name in _BY_KIND else first
            if field.name != "kv_owner" and getattr(layer, field.name) != getattr(like, field.name):
                raise ValueError(f"layer {i}: {field.name} is not that of the other layers")
        if layer.qkv_bias or layer.rope_divisors:
            raise ValueError(f"layer {i}: biases and rope_divisors have no setting")
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": first.mlp_size,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": first.heads,
        "num_key_value_heads": first.kv_heads,
        "head_dim": first.head_dim,
        "max_position_embeddings": spec.context_tokens,
        "rms_norm_eps": spec.norm_eps,
        "tie_word_embeddings": spec.tied_head,
        "hidden_act": next(name for name, mlp in _ACTIVATIONS.items() if mlp is first.mlp),
        "sliding_window": some_local.window if some_local else None,
        "layer_types": [LOCAL if layer.window else GLOBAL for layer in spec.layers],
        "kv_owners": [layer.kv_owner for layer in spec.layers],
        "rope_parameters": {
            name: {"rope_type": "linear", "rope_theta": kind.rope_base, "factor": kind.rope_factor}
            for name, kind in ((LOCAL, some_local), (GLOBAL, some_global))
            if kind is not None
        },
        "qkv_clamp": first.qkv_clamp or None,
        "mlp_clamp": first.mlp_clamp or None,
        "qk_norm": first.qk_norm,
        "post_norms": first.post_norms,
        "attention_sinks": first.sinks,
        "attention_multiplier": first.softmax_scale,
        "attn_logit_softcapping": first.attention_softcap or None,
        "final_logit_softcapping": spec.logit_softcap or None,
        "embedding_multiplier": spec.embedding_scale,
        "native_int8": spec.native_int8,
    }


def shared_owners(local: Sequence[bool], of_local: int, of_global: int) -> list[int | None]:
    """The KV owner of each layer (None: its own) when runs of so many local and global layers share."""
    owners: list[int | None] = []
    runs: dict[bool, list[int]] = {True: [], False: []}  # layers of the run that is being made
    for i, is_local in enumerate(local):
        if not is_local:
            runs[True].clear()
        run = runs[is_local]
        if len(run) == (of_local if is_local else of_global):
            run.clear()
        run.append(i)
        owners.append(run[0] if run[0] != i else None)
    return owners


def _explicit_owners(owners: Sequence[Any]) -> list[int | None]:
    for i, owner in enumerate(owners):
        if owner is None:
            continue
        if isinstance(owner, bool) or not isinstance(owner, int):
            raise ModelLoadError(f"{CONFIG_FILE}: kv_owners[{i}] is {owner!r}, neither null nor a layer")
        if not 0 <= owner < i:
            raise UnsupportedModelError(
                f"kv_owners[{i}] = {owner} in {CONFIG_FILE} is not supported "
                "(a layer reads the KV of an earlier one, or null for its own)"
            )
    return list(owners)
