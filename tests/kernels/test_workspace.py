"""The executor counts every buffer that it keeps: what it says is what the allocator says."""

from __future__ import annotations

import ctypes
import dataclasses

import numpy as np
import pytest

from duologue.kernels import PAGE_TOKENS, _native
from duologue.kernels.sampling import SAMPLING_ROW
from duologue.models.random_model import random_weights
from duologue.models.spec import Mlp
from tests.kernels.step_case import StepCase, make_spec

TOKENS = 600
LOGITS = 90


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip


def allocated_bytes() -> int:
    """Bytes of all blocks that malloc has given out, by every thread."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("this C library does not say what is allocated")
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def require_honest_allocator() -> None:
    """A sanitizer's allocator says nothing."""
    before = allocated_bytes()
    probe = np.empty(1 << 20, dtype=np.uint8)
    if allocated_bytes() - before < probe.nbytes:
        pytest.skip("this allocator does not say what is allocated")


def test_every_buffer_is_counted() -> None:
    require_honest_allocator()
    spec = make_spec(4, 2, windows=(0, 300), mlp_size=16_384, mlp=Mlp.GATED_GELU, post_norms=True)
    spec = dataclasses.replace(spec, vocab_size=4001)
    case = StepCase(spec, random_weights(spec, 1), threads=3, pages=-(-TOKENS // PAGE_TOKENS))
    pages = np.arange(-(-TOKENS // PAGE_TOKENS), dtype=np.int32)[None]
    tokens = np.arange(TOKENS, dtype=np.int32)
    starts, first = np.array([0, TOKENS], dtype=np.int32), np.zeros(1, dtype=np.int32)
    chosen = np.arange(TOKENS - LOGITS, TOKENS, dtype=np.int32)
    logits = np.empty((LOGITS, spec.vocab_size), dtype=np.float32)
    # Nucleus sampling with a bias and a penalty uses every buffer of the sampler.
    row = SAMPLING_ROW.pack(1.0, 0.9, 0.0, 0, 0.5, 0.0, 1.0, 0, 1, 1, 0, 1, 0, 4, 0, -1, -1, 0)
    sampling = _native.SamplingArrays(
        np.tile(np.frombuffer(row, dtype=np.uint8), (LOGITS, 1)),
        history=tokens[:4],
        bias_ids=np.zeros(1, dtype=np.int32),
        bias_values=np.ones(1, dtype=np.float32),
    )
    sampled = np.empty(LOGITS, dtype=np.int32)
    executor = _native.Executor(case.model, 3)
    before, counted_before = allocated_bytes(), executor.workspace_bytes
    executor.step(tokens, starts, first, pages, pages, *case.pools, chosen, logits, sampling, sampled, True)
    allocated, counted = allocated_bytes() - before, executor.workspace_bytes - counted_before
    print(f"{allocated} bytes allocated, {counted} counted")
    assert counted_before > 0
    # Blocks are rounded up, large ones to a page; a row of codes for each thread, 48 KiB, would be noticed.
    assert counted <= allocated <= counted + 40 * 48 + 10 * 4096
