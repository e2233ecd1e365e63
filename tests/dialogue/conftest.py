from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.models.gguf_file import read_gguf_file

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> Mapping[str, Any]:
    return read_gguf_file(smollm2_path).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf_metadata(smollm2_metadata)


@pytest.fixture(scope="session")
def smollm2_bytes(smollm2: Tokenizer) -> dict[bytes, int]:
    """The bytes that SmolLM2 has a token for, with its id: 235 of 256."""
    tokens = ((smollm2.token_bytes(i), i) for i in range(smollm2.vocab_size))
    return {data: i for data, i in tokens if len(data) == 1}


@pytest.fixture(scope="session")
def smollm2_template(smollm2_metadata: Mapping[str, Any], smollm2: Tokenizer) -> ChatTemplate:
    return ChatTemplate.for_tokenizer(smollm2_metadata["tokenizer.chat_template"], smollm2)


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    texts: list[str] = json.loads((DATA / "corpus.json").read_text(encoding="utf-8"))
    return texts


def read_golden(name: str) -> list[tuple[list[int], list[int]]]:
    """llama.cpp's ids of each text of the corpus, without and with special tokens found in it."""
    rows = json.loads((DATA / f"golden_{name}.json").read_text(encoding="utf-8"))
    return [(row[0], row[-1]) for row in rows]


@pytest.fixture(scope="session")
def golden() -> list[tuple[list[int], list[int]]]:
    return read_golden("smollm2")
