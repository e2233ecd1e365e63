"""Exact rewrites of float weights: the same function, easier to hold in int8. What each is for: see `calibrate`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from duologue.models.checkpoint import Weights
from duologue.models.rotation import rotate, rotate_rows
from duologue.models.spec import LayerSpec, ModelSpec

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
_SMALLEST_SQUARE = 1e-10
_SQUARED_ROWS = 16384


def rotates_stream(spec: ModelSpec) -> bool:
    """Whether the residual stream can be rotated at no cost: a post-norm's weight acts on its channels as they are."""
    return not any(layer.post_norms for layer in spec.layers)


def rotate_model(spec: ModelSpec, weights: Mapping[str, Floats]) -> Weights:
    """The same function in a rotated residual stream, norms folded, each head's values rotated.

    Where the stream cannot be rotated, norms and a tied head stay as they are; where a clamp bounds the values, so do they.
    """
    out: Weights = {"embedding": rotated_embedding(spec, weights), **rotated_head(spec, weights)}
    for i in range(len(spec.layers)):
        out |= rotated_layer(spec, weights, i)
    return out


def rotated_embedding(spec: ModelSpec, weights: Mapping[str, Floats]) -> Floats:
    """The embedding [vocab, hidden] that begins the rotated stream."""
    embedding = weights["embedding"]
    return rotated_rows(embedding) if rotates_stream(spec) else embedding


def rotated_head(spec: ModelSpec, weights: Mapping[str, Floats]) -> Weights:
    """`final_norm` and, unless it is the embedding still, `head`."""
    if not rotates_stream(spec):
        return {name: weights[name] for name in ("head", "final_norm") if name in weights}
    head = rotated_rows(weights["embedding" if spec.tied_head else "head"], weights["final_norm"])
    return {"head": head, "final_norm": np.ones(spec.hidden_size, dtype=np.float32)}


def rotated_layer(spec: ModelSpec, weights: Mapping[str, Floats], i: int) -> Weights:
    """The weights of one layer, under their full names."""
    layer, own, turned = spec.layers[i], f"layers.{i}.", rotates_stream(spec)
    out: Weights = {name: weights[name] for name in weights if name.startswith(own)}
    if turned:
        for norm, names in (("attention_norm", ("q", "k", "v")), ("mlp_norm", ("gate", "up"))):
            for name in present(out, own, names):
                out[name] = rotated_rows(out[name], out[own + norm])
            out[own + norm] = np.ones(spec.hidden_size, dtype=np.float32)
        out[own + "down"] = as_float(rotate_rows(out[own + "down"]))
        out[own + "output"] = as_float(rotate_rows(out[own + "output"]))
    if _values_turn(spec, layer):
        # Values rotated within each head by the same matrix that the output projection undoes.
        if layer.kv_owner is None:
            heads = out[own + "v"].reshape(layer.kv_heads, layer.head_dim, -1)
            out[own + "v"] = as_float(np.stack([rotate_rows(head) for head in heads])).reshape(
                out[own + "v"].shape
            )
            if layer.qkv_bias:  # a row of each head times the matrix, which is its own transpose
                bias = out[own + "v_bias"].reshape(layer.kv_heads, layer.head_dim)
                out[own + "v_bias"] = as_float(rotate(bias)).reshape(-1)
        output = out[own + "output"].reshape(spec.hidden_size, layer.heads, layer.head_dim)
        out[own + "output"] = as_float(rotate(output)).reshape(spec.hidden_size, -1)
    return out


def rotated_rows(x: Floats, scale: Floats | None = None) -> Floats:
    """x [n, hidden], its columns times `scale`, times the rotation; float64 only for some rows at a time."""
    out = np.empty(x.shape, dtype=np.float32)
    for begin in range(0, len(x), _SQUARED_ROWS):
        rows = slice(begin, begin + _SQUARED_ROWS)
        out[rows] = rotate(x[rows] if scale is None else x[rows] * scale.astype(np.float64))
    return out


def present(weights: Weights, own: str, names: tuple[str, ...]) -> list[str]:
    """The full names of those that a layer has: one that shares KV has no k and v, an MLP without a gate no gate."""
    return [own + name for name in names if own + name in weights]


def balancing_scale(squares: Doubles, other_squares: Doubles) -> Floats:
    """sqrt(rms / other rms) of each channel, from mean squares [K]: divide the first side by it and multiply the other.

    A common factor of all channels would change no code, so there is none. Square roots are exact on every machine.
    """
    ratio = np.maximum(squares, _SMALLEST_SQUARE) / np.maximum(other_squares, _SMALLEST_SQUARE)
    return as_float(np.sqrt(np.sqrt(ratio)))


def move_scale(weights: Weights, norm: str, maps: list[str], squares: Doubles) -> Floats:
    """Moves scale from a norm's output, of mean squares [hidden], into the maps that read it, in place; returns it."""
    other = np.add.reduce([column_squares(weights[name]) for name in maps], axis=0)
    s = balancing_scale(squares, other)
    weights[norm] = weights[norm] / s
    for name in maps:
        weights[name] = weights[name] * s
    return s


def column_squares(x: Floats) -> Doubles:
    """Sum of squares of each column; numpy adds rows in order."""
    # In parts: an embedding of 262,144 rows takes gigabytes in float64.
    parts = [
        np.add.reduce(np.square(x[i : i + _SQUARED_ROWS].astype(np.float64)), axis=0)
        for i in range(0, len(x), _SQUARED_ROWS)
    ]
    return np.asarray(np.add.reduce(parts, axis=0))


def as_float(x: npt.NDArray[np.float64]) -> Floats:
    """Contiguous float32."""
    return np.ascontiguousarray(x, dtype=np.float32)


def _values_turn(spec: ModelSpec, layer: LayerSpec) -> bool:
    owner = layer if layer.kv_owner is None else spec.layers[layer.kv_owner]
    return owner.qkv_clamp == 0
