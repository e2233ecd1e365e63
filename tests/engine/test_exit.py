"""A program that ends without closing its engine ends like any other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, threading
from duologue import Engine, SamplingParams

engine = Engine.load(sys.argv[1], kv_memory_bytes=8 << 20, threads=1)
running = threading.Event()
engine.submit([5, 6, 7], SamplingParams(ignore_eos=True), lambda event: running.set())
assert running.wait(60)
"""


def test_leaving_a_program_in_the_middle_of_a_reply(tiny_model_dir: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tiny_model_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
