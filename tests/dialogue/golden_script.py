"""scripts/peers/make_tokenizer_golden.py as a module: what wrote the golden data also builds its vocabularies for tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def load_golden_script() -> Any:
    path = ROOT / "scripts" / "peers" / "make_tokenizer_golden.py"
    spec = importlib.util.spec_from_file_location("make_tokenizer_golden", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
