"""Choosing tokens from logits. See `reference.sampling` for what is computed."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from duologue.kernels import _native
from duologue.kernels.rows import as_floats

SAMPLING_ROW = struct.Struct("<fffifffIQQ8i")
"""temperature, top_p, min_p, top_k, presence, frequency and repetition penalty, choice, seed, position; where in the arrays the
biases begin and end, prompt and reply begin and end, and the reply begins; the mask's row, how many of the likeliest tokens to
report, 0. Mirrors SamplingRow in csrc/runtime/sampler.h."""


def mask_words(vocab_size: int) -> int:
    """32-bit words of a mask with one bit for each token."""
    return -(-vocab_size // 32)


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
    isa: str = "",
) -> int:
    """The token id chosen from logits [vocab], the same on every machine.

    `temperature` 0 is greedy (the first maximum); `top_k` 0, `top_p` 1, `min_p` 0 and penalties of 0, 0 and 1 are off. `bias` is
    added to the logits of its ids, the penalties are of the ids of `prompt` and `reply`, and `mask` [mask_words(vocab)] has a
    bit for each token that is allowed. `seed`, `choice` and `position` are the only source of noise.
    Raises ValueError when a parameter is out of range or there are no logits.
    """
    row = _row(logits)
    for name, value, low, high in (
        ("temperature", temperature, 0, 3e38),
        ("top_p", top_p, 1e-45, 1),
        ("min_p", min_p, 0, 1),
        ("presence_penalty", presence_penalty, -3e38, 3e38),
        ("frequency_penalty", frequency_penalty, -3e38, 3e38),
        ("repetition_penalty", repetition_penalty, 1e-45, 3e38),
        ("top_k", top_k, 0, 2**31 - 1),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} must be within [{low}, {high}], not {value}")
    for name, number, bits in (("seed", seed, 64), ("choice", choice, 32), ("position", position, 64)):
        if not 0 <= number < 1 << bits:
            raise ValueError(f"{name} must be an unsigned {bits}-bit integer, not {number}")
    bias = bias or {}
    history = np.array([*prompt, *reply], dtype=np.int32)
    packed = SAMPLING_ROW.pack(
        *(temperature, top_p, min_p, top_k, presence_penalty, frequency_penalty, repetition_penalty),
        *(choice, seed, position),
        *(0, len(bias), 0, len(history), len(prompt), -1 if mask is None else 0, -1, 0),
    )
    arrays = _native.SamplingArrays(
        np.frombuffer(packed, dtype=np.uint8).reshape(1, -1),
        history=history,
        bias_ids=np.array(list(bias), dtype=np.int32),
        bias_values=np.array(list(bias.values()), dtype=np.float32),
        masks=None if mask is None else mask.reshape(1, -1),
    )
    return _run(row, arrays, isa)


def log_probabilities(
    logits: npt.ArrayLike, top: int, *, isa: str = ""
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Ids and log-softmax, each [1 + top], of the first maximum of logits [vocab] and of the `top` largest, ties by id.

    Ids are -1 where the vocabulary has fewer. Raises ValueError when there are no logits or `top` is negative.
    """
    row = _row(logits)
    if top < 0:
        raise ValueError(f"top must be at least 0, not {top}")
    packed = SAMPLING_ROW.pack(0.0, 1.0, 0.0, 0, 0.0, 0.0, 1.0, 0, 0, 0, *(0, 0, 0, 0, 0, -1, top, 0))
    ids = np.empty((1, 1 + top), dtype=np.int32)
    values = np.empty((1, 1 + top), dtype=np.float32)
    arrays = _native.SamplingArrays(
        np.frombuffer(packed, dtype=np.uint8).reshape(1, -1), logprob_ids=ids, logprobs=values
    )
    _run(row, arrays, isa)
    return ids[0], values[0]


def _row(logits: npt.ArrayLike) -> npt.NDArray[np.float32]:
    row = as_floats(logits, 1, "logits")
    if not len(row):
        raise ValueError("logits are empty")
    return row.reshape(1, -1)


def _run(row: npt.NDArray[np.float32], arrays: _native.SamplingArrays, isa: str) -> int:
    sampled = np.empty(1, dtype=np.int32)
    _native.sample_rows(row, arrays, sampled, isa)
    return int(sampled[0])
