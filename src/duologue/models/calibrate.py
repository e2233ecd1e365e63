"""Rewrites float weights so that int8 loses little, at next to no cost per token.

Three exact rewrites of the same function, at no cost:

1. **Rotation.** The residual stream is rotated (see `rotation`), and each head's values too. Norm weights go into the maps that
   follow them and become 1; the head gets the final norm's and so is no longer the embedding's twin.
2. **Moved scale** at the input of the down projection, which no rotation reaches without work per token: channel j is divided
   by s_j in the rows of the up projection and multiplied back in the columns of the down projection.
3. **Balanced queries and keys**: in every pair of channels that RoPE turns together, queries are multiplied and keys divided by
   one factor, so that neither has channels far above the rest.

In 2 and 3 the factor is sqrt(a_j / w_j), with a_j and w_j the sizes of the two sides of the product: what minimises the
product of their norms (Cauchy-Schwarz), and with it the rounding error, while a row's amax stays in proportion to its norm.
This is SmoothQuant's rule (Xiao et al., 2022, arXiv 2211.10438) with means in place of maxima: root mean squares, and for a_j in
2 the fourth root of mean fourth powers. Maxima are misled by the first token, on which a channel of one layer is 300 times
larger than any other: they move so much scale into that channel's weights that all other weights of the row lose their digits.
Tokens count relative to the norm of what their product is added to for the same reason.

Two things cost next to nothing per token:

4. **Groups.** The MLP's channels are sorted by size, and the executor gives each of `spec.DOWN_GROUPS` equal groups of them a scale
   of its own: a token's large channels no longer take the digits of its small ones. What a first token does to one channel stays in
   a group.
5. **Keys less what they share.** A vector taken off all keys takes one number off all scores of a query, and the softmax drops it.
   The mean of the keys after RoPE is more than half of their energy, in pairs of channels that hardly turn, and most of their amax.

Where post-norms forbid 1, scale is moved at the inputs of q, k, v, gate and up by the same rule, out of the norms before them. No
scale crosses a clamp. A model that was trained in int8 (`native_int8`) is left as it is.

Then every map's weights, but the embedding's, are put on their int8 grid so that each makes up for the rounding errors of
others: see `compensate`.

The activations are those of the quantised model itself: layer by layer, by the int8 kernels, whose results do not depend on the
machine. What else was tried, and what it gave, is in docs/log.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from duologue.kernels.gemm import gemm_f32
from duologue.kernels.rows import quantize_rows, rmsnorm_rows
from duologue.models.calibration_keys import balance_queries_and_keys, key_offset, keys_may_move
from duologue.models.calibration_step import (
    THREADS,
    Quantized,
    add_products,
    attention,
    embedded,
    map_pieces,
    normed,
    products,
)
from duologue.models.checkpoint import Weights
from duologue.models.compensate import compensation, gram_matrix, round_compensated
from duologue.models.pack import MLP_EPILOGUES, pack_groups, pack_qkv, quantize_and_pack
from duologue.models.rewrite import (
    balancing_scale,
    column_squares,
    move_scale,
    present,
    rotated_embedding,
    rotated_head,
    rotated_layer,
    rotates_stream,
)
from duologue.models.spec import LayerSpec, ModelSpec

WINDOW_TOKENS = 1024
"""The calibration text is read in pieces of this length, each from position 0."""

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
_SMALLEST_SQUARE = 1e-10
_FIRST_TOKEN_WEIGHT = np.float32(4.0)
_TRANSPOSED_CHANNELS = 64
_DOWN_STEP = 4  # every fourth token tells the down projection's scale


def calibrate(
    spec: ModelSpec,
    weights: Mapping[str, Floats],
    token_ids: npt.NDArray[np.int32],
    *,
    rounded: bool = True,
    on_layer: Callable[[int], None] = lambda count: None,
) -> Weights:
    """Weights of the same function that quantise well; `weights` itself is not changed.

    `token_ids` [n] is the calibration text. `rounded` puts the weights on their int8 grid; without it the rewrites alone are
    done. `on_layer` is told how many layers are done.

    Returns every canonical weight, and what the rewrites add: for a tied head, `head` when the stream is rotated and
    `embedding_channels` when it is not; `layers.{i}.key_offset` for every layer whose keys move (KV of its own, and no cap or
    sinks on a layer that reads it). The weights of a model trained in int8 come back as they are.

    Equal input gives equal bits on every machine, whatever its threads. Raises ValueError naming the tensor
    when an activation or a weight is not finite.
    """
    out: Weights = {}
    for part in calibrated_parts(spec, weights, token_ids, rounded=rounded, on_layer=on_layer):
        out |= part
    return out


def calibrated_parts(
    spec: ModelSpec,
    weights: Mapping[str, Floats],
    token_ids: npt.NDArray[np.int32],
    *,
    rounded: bool = True,
    on_layer: Callable[[int], None] = lambda count: None,
) -> Iterator[Weights]:
    """What `calibrate` returns, in parts: the embedding, each layer, then what comes after the last.

    `weights` are looked up when their part is due, and nothing here keeps a part once the next is asked for: of a model in a
    file, no more than a part is in memory. Raises as `calibrate`.
    """
    layers = range(len(spec.layers))
    if spec.native_int8:
        for own in ("embedding", *(f"layers.{i}." for i in layers)):
            yield {name: weights[name] for name in weights if name.startswith(own)}
        yield {name: weights[name] for name in ("head", "final_norm") if name in weights}
        return
    balances_head = spec.tied_head and not rotates_stream(spec)
    embedding = rotated_embedding(spec, weights)
    pieces = [token_ids[i : i + WINDOW_TOKENS] for i in range(0, len(token_ids), WINDOW_TOKENS)]
    streams = [embedded(spec, embedding, piece) for piece in pieces]
    if not balances_head:
        yield {"embedding": embedding}
    del embedding
    caches: list[dict[int, npt.NDArray[np.uint8]]] = [{} for _ in streams]
    for i, layer in enumerate(spec.layers):
        part = rotated_layer(spec, weights, i)
        _calibrate_layer(spec, part, i, layer, streams, caches, rounded)
        on_layer(i + 1)
        yield part
        del part
        still_read = {other.kv_owner for other in spec.layers[i + 1 :]}
        for cache in caches:
            for owner in cache.keys() - still_read:
                del cache[owner]
    part = rotated_head(spec, weights)
    if balances_head:
        part["embedding"] = weights["embedding"]
        _balance_tied_head(spec, part, streams)
    elif rounded:
        _compensate(part, ["head"], _gram(normed(spec, part["final_norm"], streams, "head")))
    yield part


def _balance_tied_head(spec: ModelSpec, weights: Weights, streams: list[Floats]) -> None:
    """Moves scale from the final norm into the embedding, whose rows are divided by it again when they are looked up; in place.

    The streams began from rows without that scale: their rounding differs, not what it depends on.
    """
    squares = _mean_squares(spec, weights["final_norm"], streams)
    scale = move_scale(weights, "final_norm", ["embedding"], squares)
    weights["embedding_channels"] = np.float32(1.0) / scale


def _calibrate_layer(
    spec: ModelSpec,
    weights: Weights,
    i: int,
    layer: LayerSpec,
    streams: list[Floats],
    caches: list[dict[int, npt.NDArray[np.uint8]]],
    rounded: bool,
) -> None:
    """Rewrites the layer in `weights` and advances every stream [n, hidden] through it, in place."""
    own = f"layers.{i}."
    qkv, gate_up = present(weights, own, ("q", "k", "v")), present(weights, own, ("gate", "up"))

    if not rotates_stream(spec):
        _move_norm_scale(spec, weights, own + "attention_norm", qkv, streams)
    inputs = normed(spec, weights[own + "attention_norm"], streams, own + "qkv")
    gram = _gram(inputs)
    if (
        layer.kv_owner is None
        and not any(other.kv_owner == i for other in spec.layers)
        and not layer.qkv_clamp
    ):
        balance_queries_and_keys(spec, weights, own, layer, inputs, gram)
    if rounded:
        _compensate(weights, qkv, gram)
    packed = pack_qkv(layer, weights, own)
    projected = products(inputs, packed, limit=layer.qkv_clamp)
    if layer.kv_owner is None and keys_may_move(spec, i):
        weights[own + "key_offset"] = key_offset(spec, weights, i, projected)
    attended = map_pieces(
        lambda columns, cache: attention(spec, weights, i, columns, cache), projected, caches
    )

    inputs = map_pieces(lambda x: quantize_rows(x, name=own + "output"), attended)
    if rounded:
        _compensate(weights, [own + "output"], _gram(inputs))
    packed = quantize_and_pack(own + "output", [weights[own + "output"]])
    add_products(spec, [packed], [inputs], streams, weights.get(own + "attention_post_norm"))

    if not rotates_stream(spec):
        _move_norm_scale(spec, weights, own + "mlp_norm", gate_up, streams)
    inputs = normed(spec, weights[own + "mlp_norm"], streams, own + "gate_up")
    if rounded:
        _compensate(weights, gate_up, _gram(inputs))
    packed = quantize_and_pack(own + "gate_up", [weights[name] for name in gate_up], gated=layer.mlp.gated)
    hidden = products(inputs, packed, MLP_EPILOGUES[layer.mlp], limit=layer.mlp_clamp)

    if not layer.mlp_clamp:
        s = _down_scale(hidden, None if layer.post_norms else streams, weights[own + "down"])
        up_scale: Floats = s if layer.mlp.gated else np.sqrt(s)  # squared ReLU squares it
        weights[own + "up"] = weights[own + "up"] / up_scale[:, None]
        weights[own + "down"] = weights[own + "down"] * s
        hidden = [h / s for h in hidden]
    groups = spec.down_groups(i)
    if groups > 1:
        hidden = _sort_channels(weights, own, hidden)
    grouped = [
        map_pieces(lambda h: quantize_rows(h, name=own + "down"), parts)
        for parts in zip(*(np.split(h, groups, axis=1) for h in hidden), strict=True)
    ]
    if rounded:
        _compensate(weights, [own + "down"], _gram(*grouped))
    packed_groups = pack_groups(own + "down", weights[own + "down"], groups)
    add_products(spec, packed_groups, grouped, streams, weights.get(own + "mlp_post_norm"))


def _move_norm_scale(
    spec: ModelSpec, weights: Weights, norm: str, maps: list[str], streams: list[Floats]
) -> None:
    move_scale(weights, norm, maps, _mean_squares(spec, weights[norm], streams))


def _mean_squares(spec: ModelSpec, norm: Floats, streams: list[Floats]) -> Doubles:
    """Of each channel [hidden] behind a norm, over all rows."""
    rows = sum(len(x) for x in streams)
    of_pieces = map_pieces(lambda x: column_squares(rmsnorm_rows(x, norm, spec.norm_eps)), streams)
    return np.asarray(np.add.reduce(of_pieces, axis=0) / rows)


def _down_scale(hidden: list[Floats], streams: list[Floats] | None, down: Floats) -> Floats:
    """What to divide each input of the down projection by, from inputs [n, K], the residual stream [n, N] before (None where the
    product is normalised before it is added), and weights.

    Inputs count relative to the stream that their product leads to, and large ones count more: fourth powers. The first token
    is why: its stream grows to many times the others' and shrinks again where one input cancels it, and what that input's
    scale leaves of the others is all that remains.
    """
    rows = np.concatenate([h[::_DOWN_STEP] for h in hidden])
    after = gemm_f32(rows, down, threads=THREADS)
    if streams is not None:
        after += np.concatenate([x[::_DOWN_STEP] for x in streams])
    token_squares = column_squares(np.ascontiguousarray(after.T))  # [n]
    relative = rows.astype(np.float64) / np.sqrt(np.maximum(token_squares, _SMALLEST_SQUARE))[:, None]
    fourth_powers = np.add.reduce(np.square(np.square(relative)), axis=0) / len(rows)
    return balancing_scale(np.sqrt(fourth_powers), column_squares(down))


def _gram(*groups: list[Quantized]) -> Floats:
    """Gram matrix [K, K] of the quantised inputs, every row brought to one norm: its scale says nothing about its errors.

    `groups` are neighbouring groups of their columns, each with scales of its own. The first token of a piece counts more, since
    all others attend to it.
    """
    depth = sum(group[0][0].shape[1] for group in groups)
    unit = np.ones(depth, dtype=np.float32)
    channels = np.empty((depth, sum(len(codes) for codes, _ in groups[0])), dtype=np.float32)
    begin = 0
    for piece in zip(*groups, strict=True):
        floats = [codes.astype(np.float32) * (scale / piece[0][1])[:, None] for codes, scale in piece]
        rows = rmsnorm_rows(np.concatenate(floats, axis=1), unit, _SMALLEST_SQUARE)
        rows[0] *= _FIRST_TOKEN_WEIGHT
        # Some channels at a time: a transpose of the whole goes through memory once for each of them.
        for c in range(0, depth, _TRANSPOSED_CHANNELS):
            channels[c : c + _TRANSPOSED_CHANNELS, begin : begin + len(rows)] = rows[
                :, c : c + _TRANSPOSED_CHANNELS
            ].T
        begin += len(rows)
    return gram_matrix(channels, threads=THREADS)


def _sort_channels(weights: Weights, own: str, hidden: list[Floats]) -> list[Floats]:
    """Orders the channels between the MLP's maps by their size, largest first, in `weights` and in what is returned.

    The function stays the same; a group of channels of about one size loses least to its scale.
    """
    unit = np.ones(hidden[0].shape[1], dtype=np.float32)
    squares = np.add.reduce([column_squares(rmsnorm_rows(h, unit, _SMALLEST_SQUARE)) for h in hidden], axis=0)
    order = np.argsort(-squares, kind="stable")
    for name in present(weights, own, ("gate", "up")):
        weights[name] = np.ascontiguousarray(weights[name][order])
    weights[own + "down"] = np.ascontiguousarray(weights[own + "down"][:, order])
    return [np.ascontiguousarray(h[:, order]) for h in hidden]


def _compensate(weights: Weights, names: list[str], gram: Floats) -> None:
    """Puts weights of one input on their int8 grid, in place; `quantize_rows` gives back the very codes."""
    by = compensation(gram, threads=THREADS)
    for name in names:
        weights[name] = round_compensated(weights[name], by, threads=THREADS)
