"""A quick check of the compiled kernels on this CPU: small cases of each, bit for bit against the numpy reference.

For `duologue doctor`, and for emulated CPUs on which the test suite would take hours.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from duologue.kernels import isa_name, rows
from duologue.kernels.attention import attend, kv_block_bytes, store_kv
from duologue.kernels.gemm import gemm_int8, pack_weight
from duologue.kernels.reference import attention as reference_attention
from duologue.kernels.reference import rows as reference_rows

ISAS = ("scalar", "avx2", "avx512vnni")
_Pair = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]


def runnable_isas() -> list[str]:
    """The instruction sets that this CPU has, the best last."""
    found = []
    for isa in ISAS:
        try:
            found.append(isa_name(isa))
        except RuntimeError:
            continue
    return found


def wrong_kernels(isa: str) -> list[str]:
    """Names of the kernels of `isa` that differ from their reference by one bit: none, unless something is badly wrong.

    Raises RuntimeError for an instruction set that this CPU lacks.
    """
    return [name for name, pairs in _cases(isa) if not all(map(_same_bits, pairs))]


def _same_bits(pair: _Pair) -> bool:
    got, expected = map(np.ascontiguousarray, pair)
    return got.dtype == expected.dtype and got.shape == expected.shape and got.tobytes() == expected.tobytes()


def _cases(isa: str) -> Iterator[tuple[str, list[_Pair]]]:
    """(kernel, what it gave beside what it should give)"""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 96)).astype(np.float32)
    codes, scale = rows.quantize_rows(x, isa=isa)
    expected_codes, expected_scale = reference_rows.quantize_rows(x)
    yield "quantize_rows", [(codes, expected_codes), (scale, expected_scale)]

    w_codes, w_scale = reference_rows.quantize_rows(rng.standard_normal((80, 96)).astype(np.float32))
    got = gemm_int8(expected_codes, expected_scale, pack_weight(w_codes, w_scale), isa=isa)
    acc = expected_codes.astype(np.int32) @ w_codes.astype(np.int32).T
    yield "gemm_int8", [(got, (acc.astype(np.float32) * expected_scale[:, None]) * w_scale)]

    keys, values = (rng.standard_normal((130, 64)).astype(np.float32) for _ in range(2))
    pool = np.zeros((3, kv_block_bytes(64)), dtype=np.uint8)
    pages = [2, 0, 1]
    store_kv(pool, pages, 0, 0, keys, values, isa=isa)
    q, q_scale = reference_rows.quantize_rows(rng.standard_normal((6, 64)).astype(np.float32))
    attended = attend(pool, pages, [0], q[None], q_scale[None], group=3, first_position=128, isa=isa)
    expected = reference_attention.attend(q, q_scale, keys, values, group=3, first_position=128)
    yield "attention", [(attended[0], expected)]
