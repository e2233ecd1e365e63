#!/usr/bin/env python
"""Thousands of long dialogues resident in one engine: fills them, visits them in turn, and fails below 95 % hits.

    python scripts/prove_residency.py --dialogues 2000 --kv-memory 12GiB        half an hour on two cores
    python scripts/prove_residency.py --dialogues 20 --kv-memory 124MiB         1 % of it, as in CI
    python scripts/prove_residency.py --dialogues 200 --kv-memory 1240MiB --full

The model is our own architecture at 135M with random weights. Unless --full is given it is made narrow: the same layers, windows
and shared KV, so the same bytes of KV and the same pages, but one query head and small maps, so that filling 19 million tokens
does not take a day.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

from duologue.bench.residency import ResidencyConfig, run_residency
from duologue.bench.residency_report import plot_residency, residency_dict, residency_lines
from duologue.cli.units import parse_bytes
from duologue.engine.engine import Engine
from duologue.models.presets import preset
from duologue.models.random_model import write_random_duologue
from duologue.models.spec import ModelSpec

LEAST_HITS = 0.95
_NARROW_HIDDEN, _NARROW_MLP, _NARROW_VOCAB = 64, 96, 512


def narrow(spec: ModelSpec) -> ModelSpec:
    """The same KV, hardly any arithmetic."""
    layers = tuple(dataclasses.replace(layer, heads=1, mlp_size=_NARROW_MLP) for layer in spec.layers)
    return dataclasses.replace(spec, layers=layers, hidden_size=_NARROW_HIDDEN, vocab_size=_NARROW_VOCAB)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dialogues", type=int, default=2000)
    parser.add_argument("--messages", type=int, default=180)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kv-memory", type=parse_bytes, default=12 << 30)
    parser.add_argument("--full", action="store_true", help="the 135M model itself")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    spec = preset("135m")
    config = ResidencyConfig(dialogues=options.dialogues, messages=options.messages, rounds=options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        model = write_random_duologue(Path(folder) / "duologue-135m", spec if options.full else narrow(spec))
        engine = Engine.load(model, kv_memory_bytes=options.kv_memory)
    with engine:
        result = run_residency(
            engine, config, on_progress=lambda news: print(news, file=sys.stderr, flush=True)
        )
        engine.check_integrity()
    print("\n".join(residency_lines(result)))
    if options.plot is not None:
        plot_residency(options.plot, result)
    if options.json is not None:
        options.json.write_text(json.dumps(residency_dict(result), indent=2), encoding="utf-8")
    if result.hit_rate_by_query < LEAST_HITS:
        print(f"fewer than {100 * LEAST_HITS:g} % of the queries hit", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
