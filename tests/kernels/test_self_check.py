"""The quick check that `duologue doctor` runs."""

from __future__ import annotations

import numpy as np
import pytest

from duologue.kernels import self_check
from duologue.kernels.self_check import runnable_isas, wrong_kernels


def test_every_instruction_set_of_this_cpu_is_right() -> None:
    assert "scalar" in runnable_isas()
    for isa in runnable_isas():
        assert wrong_kernels(isa) == []


def test_one_wrong_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = self_check.gemm_int8

    def wrong(*args: object, **options: object) -> np.ndarray:
        out = right(*args, **options)  # type: ignore[arg-type]
        out.view(np.uint32)[3, 5] ^= 1
        return out

    monkeypatch.setattr(self_check, "gemm_int8", wrong)
    assert wrong_kernels("scalar") == ["gemm_int8"]
