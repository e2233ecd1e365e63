"""Reference sampling: biases, penalties, mask; temperature, min-p, top-k, top-p; inverse of the cumulative distribution at
counter-based noise.

Weights are float32 and their sums float64, added in the order in which the C++ adds them, so chosen ids are compared with
`==`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from duologue.kernels.reference.rows import LANES, Floats, exp_nonpositive, reduce_add

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of Salmon et al. (SC 2011): four 32-bit words of noise for each counter and key."""
    for i in range(10):
        a, b = _MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]
        round_key = [(word + i * step) & _WORD for word, step in zip(key, _KEY_STEPS, strict=True)]
        counter = (
            (b >> 32) ^ counter[1] ^ round_key[0],
            b & _WORD,
            (a >> 32) ^ counter[3] ^ round_key[1],
            a & _WORD,
        )
    return counter


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 bits."""
    words = philox4x32((position & _WORD, position >> 32, choice, 0), (seed & _WORD, seed >> 32))
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53


def softmax_weights(logits: Floats, temperature: float) -> tuple[Floats, np.float32]:
    """exp((logits - max) / temperature) [vocab] and their float32 sum over 16 lanes."""
    inverse = np.float32(1.0) / np.float32(temperature)
    with np.errstate(over="ignore"):
        weights = exp_nonpositive((logits - logits.max()) * inverse)
    lanes = np.zeros(-(-len(weights) // LANES) * LANES, dtype=np.float32)
    lanes[: len(weights)] = weights
    total = np.zeros(LANES, dtype=np.float32)
    for block in lanes.reshape(-1, LANES):
        total = total + block
    return weights, np.float32(reduce_add(total))


def edited(
    logits: Floats,
    bias: Mapping[int, float],
    prompt: Sequence[int],
    reply: Sequence[int],
    mask: npt.NDArray[np.uint32] | None,
    presence: float,
    frequency: float,
    repetition: float,
) -> Floats:
    """Logits [vocab] after biases, penalties and mask, each step one float32 operation."""
    row = logits.copy()
    for token, value in bias.items():
        row[token] += np.float32(value)
    once = np.float32(repetition)
    for token in sorted({*prompt, *reply}):
        row[token] = row[token] / once if row[token] > 0 else row[token] * once
    for token in sorted(set(reply)):
        row[token] -= np.float32(frequency) * np.float32(list(reply).count(token))
        row[token] -= np.float32(presence)
    if mask is not None:
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(row)]
        row[allowed == 0] = -np.inf
    return np.asarray(row)


def sample(
    logits: npt.ArrayLike,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    bias: Mapping[int, float] | None = None,
    prompt: Sequence[int] = (),
    reply: Sequence[int] = (),
    mask: npt.NDArray[np.uint32] | None = None,
    seed: int = 0,
    choice: int = 0,
    position: int = 0,
) -> int:
    """The token id chosen from logits [vocab], as `duologue.kernels.sampling.sample`."""
    penalties = (presence_penalty, frequency_penalty, repetition_penalty)
    row = edited(np.asarray(logits, dtype=np.float32), bias or {}, prompt, reply, mask, *penalties)
    vocab = len(row)
    with np.errstate(divide="ignore", over="ignore"):
        greedy = not np.isfinite(np.float32(1.0) / np.float32(temperature))
    if greedy:
        return int(np.argmax(row))
    weights, total = softmax_weights(row, temperature)
    noise = uniform(seed, choice, position)
    p = np.float32(top_p)
    has_top_k = 0 < top_k < vocab
    least = np.float32(min_p)
    if not has_top_k and least <= 0 and p >= 1:
        return _inverse(np.arange(vocab), weights, noise)
    order = np.argsort(-weights, kind="stable")  # heaviest first, ties by id
    # Without min-p or top-k: tokens this light can add up to no more than what top-p leaves out.
    floor = least if least > 0 or has_top_k else (np.float32(1.0) - p) * total / np.float32(vocab)
    kept = order[(weights[order] > 0) & (weights[order] >= floor)]
    if has_top_k:
        kept = kept[:top_k]
        mass = _running_sum(weights[kept])[-1]
    elif least > 0:
        mass = _running_sum(weights[np.sort(kept)])[-1]
    else:
        mass = _running_sum(weights)[-1]
    full = np.flatnonzero(_running_sum(weights[kept]) >= float(p) * mass)
    nucleus = kept[: full[0] + 1] if len(full) else kept
    return _inverse(nucleus, weights[nucleus], noise)


def _running_sum(weights: Floats) -> npt.NDArray[np.float64]:
    return np.cumsum(weights, dtype=np.float64)


def _inverse(ids: npt.NDArray[np.int64], weights: Floats, noise: float) -> int:
    """The first id at which the running weight passes `noise` of the whole."""
    running = _running_sum(weights)
    passed = np.flatnonzero(running > noise * running[-1])
    return int(ids[passed[0]] if len(passed) else ids[np.flatnonzero(weights > 0)[-1]])


def log_probabilities(
    logits: npt.ArrayLike, top: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """As `duologue.kernels.sampling.log_probabilities`, in float64."""
    row = np.asarray(logits, dtype=np.float64)
    shifted = row - row.max()
    values = shifted - np.log(np.exp(shifted).sum())
    ids = np.concatenate([[np.argmax(row)], np.argsort(-row, kind="stable")[:top]])
    return ids, values[ids]
