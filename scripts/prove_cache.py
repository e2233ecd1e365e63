#!/usr/bin/env python
"""The long proofs of the inter-turn cache, which `make test` runs at about 1 %.

    python scripts/prove_cache.py exact --schedules 200   hit == miss on SmolLM2, bit for bit, over random dialogues
    python scripts/prove_cache.py soak --requests 1000000  memory does not grow over a million requests

Each prints one line at the end and exits with 1 when it fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.engine.cache_proofs import prove_exact, soak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    exact = commands.add_parser("exact")
    exact.add_argument("--schedules", type=int, default=200)
    exact.add_argument("--model", default="smollm2-135m")
    endless = commands.add_parser("soak")
    endless.add_argument("--requests", type=int, default=1_000_000)
    options = parser.parse_args()
    started = time.perf_counter()
    if options.command == "exact":
        from duologue.engine.load import load_for_engine

        print(prove_exact(load_for_engine(options.model, progress=True), options.schedules))
    else:
        print(soak(options.requests))
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
