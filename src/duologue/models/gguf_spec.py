"""The spec of a GGUF file: architectures llama (Mistral's too), qwen2, qwen3, gemma2 and gemma3.

What a file leaves out is what llama.cpp takes for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.gguf_file import GgufFile
from duologue.models.gguf_settings import GgufSettings
from duologue.models.spec import LayerSpec, Mlp, ModelSpec

# Settings that change what the model computes, with the values under which they change nothing.
_NEUTRAL = {
    "rope.scaling.type": ("none", "linear"),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "expert_count": (0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
}
ROPE_DIVISORS = "rope_freqs.weight"
"""The tensor [head_dim / 2] that Llama 3's RoPE scaling is stored in: what each pair's frequency is divided by."""

_ROPE_BASE = 10000.0
_GEMMA3_LOCAL_ROPE_BASE = 10000.0
_GEMMA2_WINDOW = 4096
_GEMMA2_SCORE_CAP, _GEMMA2_LOGIT_CAP = 50.0, 30.0
# Models whose scores are scaled by hidden_size / heads and not by the head size; files do not say it, llama.cpp tells them by their
# number of layers.
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def runs_gguf(architecture: object) -> bool:
    """Whether files of this architecture (`general.architecture`) are run at all."""
    return isinstance(architecture, str) and architecture in _FAMILIES


def gguf_spec(file: GgufFile) -> ModelSpec:
    """Raises ModelLoadError or UnsupportedModelError naming the metadata entry."""
    architecture = file.metadata.get("general.architecture")
    family = _FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise UnsupportedModelError(
            f"architecture {architecture!r} (general.architecture) is not supported; "
            f"supported are {', '.join(map(repr, _FAMILIES))}"
        )
    settings = GgufSettings(file.metadata, str(architecture))
    for name, neutral in _NEUTRAL.items():
        settings.require(name, *neutral)
    return family(settings, _plain_spec(str(architecture), file, settings), file)


def _plain_spec(architecture: str, file: GgufFile, settings: GgufSettings) -> ModelSpec:
    """What all architectures say alike, as a Llama."""
    hidden, count = settings.integer("embedding_length"), settings.integer("block_count")
    if not 1 <= count <= len(file.tensors):
        raise ModelLoadError(
            f"{architecture}.block_count is {count}, but the file has {len(file.tensors)} tensors"
        )
    heads = settings.per_layer("attention.head_count", count)
    if min(heads) < 1:
        raise UnsupportedModelError(
            f"layers without attention heads ({architecture}.attention.head_count) are not supported"
        )
    kv_heads = settings.per_layer("attention.head_count_kv", count, default=heads)
    mlp_size = settings.per_layer("feed_forward_length", count)
    head_dim = settings.integer("attention.key_length", default=hidden // heads[0])
    sizes = ("attention.value_length", "rope.dimension_count")
    for name in (*sizes, "attention.key_length_swa", *(f"{size}_swa" for size in sizes)):
        other = settings.integer(name, default=head_dim)
        if other != head_dim:
            raise UnsupportedModelError(
                f"{architecture}.{name} is {other} where the head size is {head_dim}; only equal sizes are supported"
            )
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError("tensor token_embd.weight is missing")
    base, factor = settings.number("rope.freq_base", default=_ROPE_BASE), _rope_factor(settings)
    return ModelSpec(
        architecture=architecture,
        vocab_size=embedding.shape[0],
        hidden_size=hidden,
        context_tokens=settings.integer("context_length"),
        norm_eps=settings.number("attention.layer_norm_rms_epsilon"),
        tied_head="output.weight" not in file.tensors,
        layers=tuple(
            LayerSpec(h, kv, head_dim, mlp, base, rope_factor=factor)
            for h, kv, mlp in zip(heads, kv_heads, mlp_size, strict=True)
        ),
    )


def _rope_factor(settings: GgufSettings) -> float:
    old = settings.number("rope.scale_linear", 0.0)
    factor = settings.number("rope.scaling.factor", old)
    return 1.0 if settings.optional("rope.scaling.type", "linear") == "none" or factor == 0 else factor


def _llama(settings: GgufSettings, spec: ModelSpec, file: GgufFile) -> ModelSpec:
    """A window, as files of Mistral may have, is that of all layers."""
    window = settings.integer("attention.sliding_window", default=0)
    if settings.optional("attention.sliding_window_pattern", None) is not None:
        raise settings.refusal("attention.sliding_window_pattern")
    divisors = _rope_divisors(file)
    return _with_layers(
        spec, lambda i, layer: dataclasses.replace(layer, window=window, rope_divisors=divisors)
    )


def _rope_divisors(file: GgufFile) -> tuple[float, ...]:
    tensor = file.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return ()
    values: list[float] = tensor.floats().reshape(-1).tolist()
    return tuple(values)


def _qwen2(settings: GgufSettings, spec: ModelSpec, file: GgufFile) -> ModelSpec:
    _require_no_window(settings, spec)
    return _with_layers(spec, lambda i, layer: dataclasses.replace(layer, qkv_bias=True))


def _qwen3(settings: GgufSettings, spec: ModelSpec, file: GgufFile) -> ModelSpec:
    _require_no_window(settings, spec)
    return _with_layers(spec, lambda i, layer: dataclasses.replace(layer, qk_norm=True))


def _require_no_window(settings: GgufSettings, spec: ModelSpec) -> None:
    """Files of Qwen do not say which layers a window is for; one as long as the context is none."""
    if 0 != settings.integer("attention.sliding_window", default=0) < spec.context_tokens:
        raise settings.refusal("attention.sliding_window")


def _gemma2(settings: GgufSettings, spec: ModelSpec, file: GgufFile) -> ModelSpec:
    count = len(spec.layers)
    window = settings.integer("attention.sliding_window", default=_GEMMA2_WINDOW)
    if window < 1:
        raise settings.refusal("attention.sliding_window")
    local = settings.local_layers(count, 2)
    local_base = settings.number("rope.freq_base_swa", spec.layers[0].rope_base)
    cap = settings.number("attn_logit_softcapping", _GEMMA2_SCORE_CAP)

    def with_caps(i: int, layer: LayerSpec) -> LayerSpec:
        layer = _gemma_layer(layer, spec, narrow=count == _GEMMA2_27B_LAYERS)
        layer = dataclasses.replace(layer, attention_softcap=cap)
        return dataclasses.replace(layer, window=window, rope_base=local_base) if local[i] else layer

    return dataclasses.replace(
        _with_layers(spec, with_caps),
        embedding_scale=spec.hidden_size**0.5,
        logit_softcap=settings.number("final_logit_softcapping", _GEMMA2_LOGIT_CAP),
    )


def _gemma3(settings: GgufSettings, spec: ModelSpec, file: GgufFile) -> ModelSpec:
    """Without a window (missing or 0) all layers are global; RoPE scaling is that of global layers."""
    settings.require("attn_logit_softcapping", 0.0)
    count = len(spec.layers)
    window = settings.integer("attention.sliding_window", default=0)
    local = settings.local_layers(count, 6) if window else [False] * count
    local_base = settings.number("rope.freq_base_swa", _GEMMA3_LOCAL_ROPE_BASE)

    def with_norms(i: int, layer: LayerSpec) -> LayerSpec:
        layer = _gemma_layer(layer, spec, narrow=count == _GEMMA3_27B_LAYERS)
        layer = dataclasses.replace(layer, qk_norm=True)
        if not local[i]:
            return layer
        return dataclasses.replace(layer, window=window, rope_base=local_base, rope_factor=1.0)

    return dataclasses.replace(
        _with_layers(spec, with_norms),
        embedding_scale=spec.hidden_size**0.5,
        logit_softcap=settings.number("final_logit_softcapping", 0.0),
    )


def _gemma_layer(layer: LayerSpec, spec: ModelSpec, *, narrow: bool) -> LayerSpec:
    scale = (spec.hidden_size / layer.heads if narrow else layer.head_dim) ** -0.5
    return dataclasses.replace(layer, post_norms=True, mlp=Mlp.GATED_GELU, softmax_scale=scale)


def _with_layers(spec: ModelSpec, change: Callable[[int, LayerSpec], LayerSpec]) -> ModelSpec:
    layers = tuple(change(i, layer) for i, layer in enumerate(spec.layers))
    return dataclasses.replace(spec, layers=layers)


_FAMILIES: Mapping[str, Callable[[GgufSettings, ModelSpec, GgufFile], ModelSpec]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
