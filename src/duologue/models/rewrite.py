"""Exact rewrites of float weights: the same function, easier to hold in int8. What each is for: see `calibrate`."""

from __future__ import annotations

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


def rotate_model(spec: ModelSpec, weights: Weights) -> Weights:
    """The same function in a rotated residual stream, norms folded, each head's values rotated.

    Where the stream cannot be rotated, norms and a tied head stay as they are; where a clamp bounds the values, so do they.
    """
    out: Weights = dict(weights)
    turned = rotates_stream(spec)
    if turned:
        head = weights["embedding"] if spec.tied_head else weights["head"]
        out["embedding"] = as_float(rotate(weights["embedding"]))
        out["head"] = as_float(rotate(head * weights["final_norm"].astype(np.float64)))
        out["final_norm"] = np.ones(spec.hidden_size, dtype=np.float32)
    for i, layer in enumerate(spec.layers):
        own = f"layers.{i}."
        if turned:
            for norm, names in (("attention_norm", ("q", "k", "v")), ("mlp_norm", ("gate", "up"))):
                scale = weights[own + norm].astype(np.float64)
                for name in present(weights, own, names):
                    out[name] = as_float(rotate(weights[name] * scale))
                out[own + norm] = np.ones(spec.hidden_size, dtype=np.float32)
            out[own + "down"] = as_float(rotate_rows(weights[own + "down"]))
            out[own + "output"] = as_float(rotate_rows(weights[own + "output"]))
        if _values_turn(spec, layer):
            # Values rotated within each head by the same matrix that the output projection undoes.
            if layer.kv_owner is None:
                heads = out[own + "v"].reshape(layer.kv_heads, layer.head_dim, -1)
                out[own + "v"] = as_float(np.stack([rotate_rows(head) for head in heads])).reshape(
                    out[own + "v"].shape
                )
                if layer.qkv_bias:  # a row vector of each head times the matrix, which is its own transpose
                    bias = out[own + "v_bias"].reshape(layer.kv_heads, layer.head_dim)
                    out[own + "v_bias"] = as_float(rotate(bias)).reshape(-1)
            output = out[own + "output"].reshape(spec.hidden_size, layer.heads, layer.head_dim)
            out[own + "output"] = as_float(rotate(output)).reshape(spec.hidden_size, -1)
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
