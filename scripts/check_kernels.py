"""A quick self-check of the compiled kernels on this CPU, for emulated ones on which the test suite would take hours.

Runs each instruction set that the CPU has against the numpy reference, and prints one line.
"""

from __future__ import annotations

import sys

import numpy as np

from duologue.kernels import isa_name, rows
from duologue.kernels.attention import attend, kv_block_bytes, store_kv
from duologue.kernels.gemm import gemm_int8, pack_weight
from duologue.kernels.reference import attention as reference_attention
from duologue.kernels.reference import rows as reference_rows


def check(isa: str) -> None:
    """Raise AssertionError when a kernel of `isa` differs from its reference by one bit."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 96)).astype(np.float32)
    codes, scale = rows.quantize_rows(x, isa=isa)
    expected_codes, expected_scale = reference_rows.quantize_rows(x)
    np.testing.assert_array_equal(codes, expected_codes)
    np.testing.assert_array_equal(scale, expected_scale)

    w_codes, w_scale = reference_rows.quantize_rows(rng.standard_normal((80, 96)).astype(np.float32))
    got = gemm_int8(codes, scale, pack_weight(w_codes, w_scale), isa=isa)
    acc = codes.astype(np.int32) @ w_codes.astype(np.int32).T
    np.testing.assert_array_equal(got, (acc.astype(np.float32) * scale[:, None]) * w_scale)

    keys, values = (rng.standard_normal((130, 64)).astype(np.float32) for _ in range(2))
    pool = np.zeros((3, kv_block_bytes(64)), dtype=np.uint8)
    pages = [2, 0, 1]
    store_kv(pool, pages, 0, 0, keys, values, isa=isa)
    q, q_scale = reference_rows.quantize_rows(rng.standard_normal((6, 64)).astype(np.float32))
    attended = attend(pool, pages, [0], q[None], q_scale[None], group=3, first_position=128, isa=isa)
    expected = reference_attention.attend(q, q_scale, keys, values, group=3, first_position=128)
    np.testing.assert_array_equal(attended[0], expected)


def main() -> int:
    """Check every instruction set of this CPU."""
    checked = []
    for isa in ("scalar", "avx2", "avx512vnni"):
        try:
            isa_name(isa)
        except RuntimeError:
            continue
        check(isa)
        checked.append(isa)
    print(f"kernels agree with their references: {', '.join(checked)}; chosen here: {isa_name()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
