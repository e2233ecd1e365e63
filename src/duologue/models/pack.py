"""Float weights to the int8 arrays that the executor reads, under flat names that a file can hold.

A linear map `x` becomes `x.codes`, `x.compensation`, `x.scale` and, if it has one, `x.bias`; q, k and v of a
layer are one map, and so are gate and up. Norms and RoPE tables stay float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from duologue.errors import UnsupportedModelError
from duologue.kernels.gemm import Epilogue, PackedWeight, pack_weight
from duologue.kernels.rows import quantize_rows, require_finite
from duologue.models.checkpoint import Weights
from duologue.models.rope import rope_kinds
from duologue.models.spec import LayerSpec, Mlp, ModelSpec

CALIBRATION_VERSION = 5
"""Raised when `calibrate` would give other weights for the same checkpoint and text."""

QUANTISER_VERSION = 1
"""Raised when the same float weights would give other codes or scales."""

PACKED_LAYOUT_VERSION = 2
"""Raised when the packed arrays, their names or their order of bytes change."""

TOKENIZER_VERSION = 2
"""Raised when the packed tokenizer changes: its format (`dialogue.vocabulary`), or what is made of the same files."""

Arrays = dict[str, npt.NDArray[Any]]

MLP_EPILOGUES = {
    Mlp.GATED_SILU: Epilogue.GATED_SILU,
    Mlp.GATED_GELU: Epilogue.GATED_GELU,
    Mlp.RELU2: Epilogue.RELU2,
}
"""What the product of a layer's `gate_up` ends in."""

_SINK_UNIT = 16  # arrays are multiples of 64 bytes


def pack_model(spec: ModelSpec, weights: Weights) -> Arrays:
    """Quantises and packs every weight. A `head` among the weights of a tied model is packed on its own.

    Raises UnsupportedModelError naming the weight when a map is too deep for exact int32 sums, and ValueError naming the weight,
    or the vector, that is not finite.
    """
    return pack_parts(spec, (weights,))


def pack_parts(spec: ModelSpec, parts: Iterable[Weights]) -> Arrays:
    """As `pack_model`, of weights that come in parts, each with all of a layer or none; a part is let go when it is packed.

    Raises KeyError for a weight that is in no part.
    """
    packed: list[Arrays] = [{} for _ in spec.layers]
    ends: Arrays = {}
    parts = iter(parts)
    while (part := next(parts, None)) is not None:
        for i in range(len(spec.layers)):
            if f"layers.{i}.q" in part:
                packed[i] = _pack_layer(spec, i, part)
        for name in ("embedding", "head"):
            if name in part:
                _put(ends, name, [part[name]])
        ends |= {name: _vector(part, name) for name in ("final_norm", "embedding_channels") if name in part}
        del part  # before the next one is made
    missing = [f"layers.{i}" for i, layer in enumerate(packed) if not layer]
    missing += [name for name in ("final_norm", "embedding.codes") if name not in ends]
    if missing:
        raise KeyError(missing[0])
    arrays: Arrays = {name: ends[name] for name in sorted(ends, key=_ends_order)}
    # An even number of positions keeps every array a multiple of 64 bytes.
    positions = spec.context_tokens + spec.context_tokens % 2
    for n, kind in enumerate(rope_kinds(spec)):
        arrays[f"rope.{n}.cos"], arrays[f"rope.{n}.sin"] = kind.tables(positions)
    for of_layer in packed:
        arrays |= of_layer
    return arrays


def _ends_order(name: str) -> int:
    """The place of a packed array of the embedding or the head among the others of these."""
    return ("final_norm", "embedding", "embedding_channels", "head").index(name.split(".")[0])


def _pack_layer(spec: ModelSpec, i: int, weights: Weights) -> Arrays:
    layer, own = spec.layers[i], f"layers.{i}."
    arrays: Arrays = {
        own + name: _vector(weights, own + name)
        for name in ("attention_norm", "mlp_norm", *optional_norms(layer))
    }
    if layer.sinks:
        sinks = _vector(weights, own + "sinks")
        arrays[own + "sinks"] = np.pad(sinks, (0, -len(sinks) % _SINK_UNIT))
    _put_packed(arrays, own + "qkv", pack_qkv(layer, weights, own))
    _put(arrays, own + "output", [weights[own + "output"]])
    gate_up = ("gate", "up") if layer.mlp.gated else ("up",)
    _put(arrays, own + "gate_up", [weights[own + name] for name in gate_up], gated=layer.mlp.gated)
    for g, packed in enumerate(pack_groups(own + "down", weights[own + "down"], spec.down_groups(i))):
        _put_packed(arrays, f"{own}down.{g}", packed)
    if own + "key_offset" in weights:
        arrays[own + "key_offset"] = _vector(weights, own + "key_offset")
    return arrays


def _vector(weights: Weights, name: str) -> npt.NDArray[np.float32]:
    require_finite(weights[name], name)
    return weights[name]


def pack_qkv(layer: LayerSpec, weights: Weights, own: str) -> PackedWeight:
    """The packed map of a layer's queries and, if it owns its KV, keys and values, `own` being what its names begin with.

    Raises as `quantize_and_pack`.
    """
    names = [own + name for name in (("q", "k", "v") if layer.kv_owner is None else ("q",))]
    bias = np.concatenate([weights[f"{name}_bias"] for name in names]) if layer.qkv_bias else None
    return quantize_and_pack(own + "qkv", [weights[name] for name in names], bias=bias)


def quantize_and_pack(
    name: str,
    parts: list[npt.NDArray[np.float32]],
    *,
    gated: bool = False,
    bias: npt.NDArray[np.float32] | None = None,
) -> PackedWeight:
    """One packed map of float parts [n_i, k], by the one quantiser, and a bias of all their rows, which stays float32.

    Raises UnsupportedModelError naming the weight when it is too deep for exact int32 sums, and ValueError naming it when it is
    not finite.
    """
    quantized = [quantize_rows(part, name=name) for part in parts]
    codes = np.concatenate([codes for codes, _ in quantized])
    scale = np.concatenate([scale for _, scale in quantized])
    try:
        return pack_weight(codes, scale, bias, gated=gated)
    except ValueError as error:
        raise UnsupportedModelError(f"weight {name} {list(codes.shape)} cannot be packed: {error}") from error


def pack_groups(name: str, weight: npt.NDArray[np.float32], groups: int) -> list[PackedWeight]:
    """Packed maps of equal, neighbouring groups of the columns of a weight [n, k], under the scales of whole rows.

    Raises as `quantize_and_pack`.
    """
    if groups == 1:
        return [quantize_and_pack(name, [weight])]
    codes, scale = quantize_rows(weight, name=name)
    return [pack_weight(part, scale) for part in np.split(codes, groups, axis=1)]


def _put(arrays: Arrays, name: str, parts: list[npt.NDArray[np.float32]], *, gated: bool = False) -> None:
    _put_packed(arrays, name, quantize_and_pack(name, parts, gated=gated))


def _put_packed(arrays: Arrays, name: str, packed: PackedWeight) -> None:
    arrays[f"{name}.codes"] = packed.codes
    arrays[f"{name}.compensation"] = packed.compensation
    arrays[f"{name}.scale"] = packed.scale
    if packed.bias is not None:
        arrays[f"{name}.bias"] = packed.bias


def packed_weight(
    arrays: Mapping[str, npt.NDArray[Any]], name: str, n: int, k: int, *, gated: bool = False
) -> PackedWeight:
    """The packed map [n, k] called `name`, its arrays not copied. Raises KeyError when there is none."""
    return PackedWeight(
        codes=arrays[f"{name}.codes"],
        compensation=arrays[f"{name}.compensation"],
        scale=arrays[f"{name}.scale"],
        bias=arrays.get(f"{name}.bias"),
        n=n,
        k=k,
        gated=gated,
    )


def optional_norms(layer: LayerSpec) -> list[str]:
    """The norms that a layer has beyond the two in front of attention and MLP."""
    names = ["attention_post_norm", "mlp_post_norm"] if layer.post_norms else []
    if layer.qk_norm:
        names += ["q_norm"] if layer.kv_owner is not None else ["q_norm", "k_norm"]
    return names


def layer_weights(
    arrays: Mapping[str, npt.NDArray[Any]], spec: ModelSpec, index: int
) -> dict[str, PackedWeight]:
    """The packed maps of one layer, by the executor's names: qkv, output, gate_up. For down see `down_weights`."""
    layer: LayerSpec = spec.layers[index]
    query = layer.heads * layer.head_dim
    kv = 2 * layer.kv_heads * layer.head_dim if layer.kv_owner is None else 0
    own = f"layers.{index}."
    return {
        "qkv": packed_weight(arrays, own + "qkv", query + kv, spec.hidden_size),
        "output": packed_weight(arrays, own + "output", spec.hidden_size, query),
        "gate_up": packed_weight(
            arrays,
            own + "gate_up",
            (2 if layer.mlp.gated else 1) * layer.mlp_size,
            spec.hidden_size,
            gated=layer.mlp.gated,
        ),
    }


def down_weights(arrays: Mapping[str, npt.NDArray[Any]], spec: ModelSpec, index: int) -> list[PackedWeight]:
    """The packed down projection of one layer, a map for each group of its input's channels."""
    groups = spec.down_groups(index)
    width = spec.layers[index].mlp_size // groups
    return [packed_weight(arrays, f"layers.{index}.down.{g}", spec.hidden_size, width) for g in range(groups)]
