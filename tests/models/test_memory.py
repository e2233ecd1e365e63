"""Quantising a checkpoint takes memory for a part of it and for what comes out, not for all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from duologue.models.random_model import write_random_llama
from tests.cli.processes import environment
from tests.models.shards import cut_into_shards

PACK = """
import sys
from pathlib import Path
import numpy as np
from duologue.models.calibrate import calibrated_parts
from duologue.models.hf_checkpoint import read_hf_folder
from duologue.models.pack import pack_parts

def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))

checkpoint = read_hf_folder(Path(sys.argv[1]))
before_bytes = peak_bytes()
if sys.argv[2] == "whole":
    arrays = dict(checkpoint.weights)
else:
    ids = np.arange(64, dtype=np.int32)
    arrays = pack_parts(checkpoint.spec, calibrated_parts(checkpoint.spec, checkpoint.weights, ids, rounded=False))
print(peak_bytes() - before_bytes, sum(array.nbytes for array in arrays.values()))
"""
LAYERS, LAYER_BYTES = 16, 4 * 256 * (4 * 256 + 3 * 768)


def measured(folder: Path, how: str) -> tuple[int, int]:
    """Peak of memory in bytes, without what the process had before, and bytes of what came out."""
    command = [sys.executable, "-c", PACK, str(folder), how]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    peak_bytes, packed_bytes = map(int, done.stdout.split())
    print(f"{how}: peak {peak_bytes:,}, arrays {packed_bytes:,}, floats {LAYERS * LAYER_BYTES:,}")
    return peak_bytes, packed_bytes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells the peak of memory on Linux alone")
def test_a_checkpoint_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    folder = write_random_llama(
        tmp_path / "large", hidden=256, layers=LAYERS, heads=8, kv_heads=8, head_dim=32, mlp=768, vocab=512,
        context_tokens=128,
    )  # fmt: skip
    cut_into_shards(folder, 4)
    peak_bytes, packed_bytes = measured(folder, "parts")
    bound_bytes = packed_bytes + 5 * LAYER_BYTES  # five layers of work beside what is packed
    assert peak_bytes < bound_bytes < 0.6 * LAYERS * LAYER_BYTES
    # The control: all weights in memory are beyond the bound.
    assert measured(folder, "whole")[0] > bound_bytes
