"""Quantising a checkpoint takes memory for a part of it and for what comes out, not for all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duologue.models.load import packed_path
from duologue.models.random_model import write_random_llama
from duologue.models.store import CACHE_VARIABLE
from tests.cli.processes import environment
from tests.models.shards import cut_into_shards

LOAD = """
import sys
import numpy as np
import duologue.models.calibrate, duologue.models.hf_checkpoint  # in the baseline
from duologue.models.load import Prepared, load_model

def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

before_bytes = peak_bytes()
load_model(sys.argv[1], lambda checkpoint: Prepared(b"", np.arange(64, dtype=np.int32)))
print(peak_bytes() - before_bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells the peak of memory on Linux alone")
def test_a_checkpoint_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, layer_weights = 32, 256 * (4 * 256 + 3 * 768)
    folder = write_random_llama(
        tmp_path / "large", hidden=256, layers=layers, heads=8, kv_heads=8, head_dim=32, mlp=768, vocab=512,
        context_tokens=128,
    )  # fmt: skip
    cut_into_shards(folder, 4)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    floats_bytes, peak_bytes = 4 * layers * layer_weights, int(done.stdout)
    packed_bytes = next(packed_path("x", "y").parent.glob("*.safetensors")).stat().st_size
    print(f"floats {floats_bytes:,}, packed {packed_bytes:,}, peak {peak_bytes:,}")
    # Some ten layers of work beside what is packed; all floats at once would be 32, and were twice as many.
    assert peak_bytes < packed_bytes + 12 * 4 * layer_weights
    assert packed_bytes + 12 * 4 * layer_weights < 0.7 * floats_bytes
