"""Reference sampling: counter-based noise, temperature, top-k, top-p, inverse of the cumulative distribution.

Weights are float32 and their sums float64, added in the order in which the C++ adds them, so chosen ids are compared with
`==`.
"""

from __future__ import annotations

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


def sample(
    logits: npt.ArrayLike,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    choice: int = 0,
    position: int = 0,
) -> int:
    """The token id chosen from logits [vocab], as `duologue.kernels.sampling.sample`."""
    row = np.asarray(logits, dtype=np.float32)
    vocab = len(row)
    with np.errstate(divide="ignore", over="ignore"):
        greedy = not np.isfinite(np.float32(1.0) / np.float32(temperature))
    if greedy:
        return int(np.argmax(row))
    weights, total = softmax_weights(row, temperature)
    noise = uniform(seed, choice, position)
    p = np.float32(top_p)
    has_top_k = 0 < top_k < vocab
    if not has_top_k and p >= 1:
        return _inverse(np.arange(vocab), weights, noise)
    order = np.argsort(-weights, kind="stable")  # heaviest first, ties by id
    if has_top_k:
        order = order[:top_k]
        order = order[weights[order] > 0]
        mass = _running_sum(weights[order])[-1]
    else:
        # Tokens this light can add up to no more than what top-p leaves out.
        floor = (np.float32(1.0) - p) * total / np.float32(vocab)
        mass = _running_sum(weights)[-1]
        order = order[(weights[order] > 0) & (weights[order] >= floor)]
    full = np.flatnonzero(_running_sum(weights[order]) >= float(p) * mass)
    nucleus = order[: full[0] + 1] if len(full) else order
    return _inverse(nucleus, weights[nucleus], noise)


def _running_sum(weights: Floats) -> npt.NDArray[np.float64]:
    return np.cumsum(weights, dtype=np.float64)


def _inverse(ids: npt.NDArray[np.int64], weights: Floats, noise: float) -> int:
    """The first id at which the running weight passes `noise` of the whole."""
    running = _running_sum(weights)
    passed = np.flatnonzero(running > noise * running[-1])
    return int(ids[passed[0]] if len(passed) else ids[np.flatnonzero(weights > 0)[-1]])
