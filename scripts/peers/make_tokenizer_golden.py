"""Write the golden token ids of tests/dialogue with llama.cpp: what the tokenizer must give on the corpus.

    eval "$(scripts/peers/llama_cpp.sh)"
    python scripts/peers/make_tokenizer_golden.py MODEL.gguf

Needs the peer environment that llama_cpp.sh builds (DUOLOGUE_PEERS_DIR, LLAMA_CPP_LIB_PATH).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "dialogue" / "data"


def tokenize_with_llama_cpp(model: Path, texts: Sequence[str], *, pieces: bool = False) -> dict[str, Any]:
    """The reply of llama_cpp_tokenize.py, run in the peer's environment: lists of ids under "plain" and
    "special", and under "pieces" the bytes of every token in hex."""
    peers = Path(os.environ.get("DUOLOGUE_PEERS_DIR", ROOT / ".peers"))
    python = peers / "venv" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} is missing; run scripts/peers/llama_cpp.sh")
    environment = {"LLAMA_CPP_LIB_PATH": str(peers / "llama.cpp" / "bin"), **os.environ}
    script = Path(__file__).with_name("llama_cpp_tokenize.py")
    done = subprocess.run(
        [python, script, model],
        input=json.dumps({"texts": list(texts), "pieces": pieces}),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"llama.cpp's tokenizer failed: {done.stderr[-2000:]}")
    reply: dict[str, Any] = json.loads(done.stdout)
    return reply


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    corpus = json.loads((DATA / "corpus.json").read_text(encoding="utf-8"))
    reply = tokenize_with_llama_cpp(Path(sys.argv[1]), corpus)
    rows = [json.dumps(row) for row in zip(reply["plain"], reply["special"], strict=True)]
    text = "[\n" + ",\n".join(rows) + "\n]\n"
    (DATA / "golden_smollm2.json").write_text(text, encoding="utf-8")
    print(f"{len(rows)} texts, {sum(map(len, reply['plain']))} tokens")


if __name__ == "__main__":
    main()
