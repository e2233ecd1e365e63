"""The model that the vLLM peer serves has our tokenizer."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
from tokenizers import Tokenizer as Backend

from duologue.bench.dialogue_workload import WorkloadSpec, make_dialogues
from duologue.dialogue.tokenizer import Tokenizer
from duologue.models.gguf_file import read_gguf_file

SCRIPT = Path(__file__).parents[2] / "scripts/peers/smollm2_hf.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("smollm2_hf", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_written_tokenizer_gives_our_ids(script: ModuleType, smollm2_path: Path) -> None:
    metadata = read_gguf_file(smollm2_path).metadata
    ours = Tokenizer.from_gguf_metadata(metadata)
    theirs = Backend.from_str(json.dumps(script.tokenizer_json(metadata)))
    texts = [step.text for dialogue in make_dialogues(WorkloadSpec()) for step in dialogue.steps]
    texts.append("<|im_start|>user\nIt's 1234 o'clock,\n\n  naïve 漢字 🙂<|im_end|>\n")
    for text in texts:
        assert theirs.encode(text).ids == ours.encode(text, parse_special=True)
    with pytest.raises(SystemExit, match="only SmolLM2"):
        script.tokenizer_json({**metadata, "tokenizer.ggml.pre": "llama-bpe"})
