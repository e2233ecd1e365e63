"""The tokenizer against llama.cpp itself: every code point, random text, and every pre-tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from duologue.dialogue.pretokenizers import SUPPORTED_PRE_TOKENIZERS
from duologue.dialogue.tokenizer import Tokenizer
from duologue.models.fetch import fetch
from duologue.models.gguf_file import read_gguf_file
from duologue.models.registry import MODELS
from tests.dialogue.golden_script import ROOT, load_golden_script

pytestmark = pytest.mark.peers

DATA = ROOT / "tests/dialogue/data"
CORPUS: list[str] = json.loads((DATA / "corpus.json").read_text(encoding="utf-8"))
LIKELY = (
    "'s", "'RE", "'Ll", "ſ", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<|im_", "|>",
    "</s>", "<s>", "\r\n", "\n\n", "\t", "    ", "\u00a0", "\u3000", "\u0085", "\x00", "0", "12", "٣", "½",
    "Ⅷ", " the", "ing", "é", "e\u0301", "日本", "한", "ع", "😀", "\u200d", "\ufe0f", "\U00016d40", "\u1c89",
    "$", "^", "`", "_",
)  # fmt: skip
GEMMA_LIKELY = (
    "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<unused0>", "<pad>", "<h1>", "</h1>", "<b>", "<table>", "</s>", "<",
    ">", "</", "\n", "\n\n", "\n" * 31, "\n" * 32, " ", "  ", " " * 31, " " * 33, "\t", "\t\t", "▁", "▁▁", " the", "the",
    "thing", "in", "in", "ing", "aaaa", "ab", "ba", "--", "----", "===", "é", "日本", "😀", "\u200d", "\x00", "<0x0A>", "0", "12",
)  # fmt: skip
GEMMA_TEXT = st.lists(st.sampled_from(GEMMA_LIKELY) | st.text(max_size=4), max_size=16).map("".join)
RANDOM_TEXT = st.lists(st.sampled_from(LIKELY) | st.text(max_size=4), max_size=10).map("".join)
EXAMPLES = 600


golden_script = load_golden_script()
tokenize_with_llama_cpp: Callable[..., dict[str, Any]] = golden_script.tokenize_with_llama_cpp


@cache
def random_texts(count: int, strategy: st.SearchStrategy[str] = RANDOM_TEXT) -> list[str]:
    """Texts that hypothesis makes up, gathered so that llama.cpp is started once for all of them."""
    texts: list[str] = []

    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def gather(text: str) -> None:
        texts.append(text)

    gather()
    return texts


# All of the planes in which Unicode assigns characters, and every 64th of the empty and private ones.
CODE_POINTS = [
    chr(c)
    for c in (*range(0xD800), *range(0xE000, 0x40000), *range(0x40000, 0xE0000, 64), *range(0xE0000, 0xE1000),
              *range(0xE1000, 0x110000, 64))
]  # fmt: skip


def code_point_texts(form: str, step: int = 1) -> list[str]:
    """Every `step`th of these put in the form, 32 to a text, as calls cost more than characters."""
    shown = [form.replace("c", c) for c in CODE_POINTS[::step]]
    return ["".join(shown[at : at + 32]) for at in range(0, len(shown), 32)]


def assert_same(tokenizer: Tokenizer, model: Path, texts: Sequence[str]) -> None:
    reply = tokenize_with_llama_cpp(model, texts, pieces=True)
    for text, plain, special in zip(texts, reply["plain"], reply["special"], strict=True):
        assert tokenizer.encode(text) == plain, ascii(text)
        assert tokenizer.encode(text, parse_special=True) == special, ascii(text)
    assert [tokenizer.token_bytes(i).hex() for i in range(tokenizer.vocab_size)] == reply["pieces"]


@pytest.fixture(scope="module")
def smollm2_metadata(smollm2_path: Path) -> Mapping[str, Any]:
    return read_gguf_file(smollm2_path).metadata


def golden(name: str) -> list[list[list[int]]]:
    """Per text of the corpus the ids without special tokens and, as the last entry, with them."""
    rows: list[list[list[int]]] = json.loads((DATA / f"golden_{name}.json").read_text(encoding="utf-8"))
    return rows


def assert_golden(name: str, reply: Mapping[str, Any]) -> None:
    assert reply["plain"] == [row[0] for row in golden(name)]
    assert reply["special"] == [row[-1] for row in golden(name)]


def test_golden_data_is_what_llama_cpp_gives(smollm2_path: Path) -> None:
    assert_golden("smollm2", tokenize_with_llama_cpp(smollm2_path, CORPUS))


@pytest.fixture(scope="module")
def gemma3_path() -> Path:
    """Gemma 3 270M, fetched as `duologue serve gemma3-270m` does it, once its terms are accepted."""
    return fetch(MODELS["gemma3-270m"])


def test_gemma3(gemma3_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf_metadata(read_gguf_file(gemma3_path).metadata)
    assert_same(tokenizer, gemma3_path, [*CORPUS, *random_texts(EXAMPLES, GEMMA_TEXT)])
    assert_golden("gemma3", tokenize_with_llama_cpp(gemma3_path, CORPUS))


def test_gemma3_on_every_code_point(gemma3_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf_metadata(read_gguf_file(gemma3_path).metadata)
    assert_same(tokenizer, gemma3_path, code_point_texts("acb c c", step=3))


@pytest.mark.parametrize("name", ["spm", "spm_prefix"])
def test_a_small_sentencepiece_vocabulary_with_equal_scores(name: str, tmp_path: Path) -> None:
    prefix = name == "spm_prefix"
    assert_golden(name, golden_script.tokenize_spm(CORPUS, tmp_path, space_prefix=prefix))
    tokenizer = Tokenizer.from_gguf_metadata(golden_script.spm_metadata(space_prefix=prefix))
    assert_same(tokenizer, tmp_path / "vocabulary.gguf", random_texts(EXAMPLES, GEMMA_TEXT))


def test_smollm2_on_random_text(smollm2_path: Path, smollm2_metadata: Mapping[str, Any]) -> None:
    texts = random_texts(EXAMPLES)
    assert len(texts) >= 500
    assert_same(Tokenizer.from_gguf_metadata(smollm2_metadata), smollm2_path, texts)


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """A GGUF file with a vocabulary and nothing else; returns what a reader finds in it."""
    golden_script.write_vocabulary(path, metadata)
    return read_gguf_file(path).metadata


def test_the_class_of_every_code_point(tmp_path: Path) -> None:
    """A vocabulary whose merges join a letter, a number and a sign with any byte next to them, so that ids
    show on which side of each code point words are cut, and so if it is a letter, number, sign or space.

    Under `gpt-2`, for whose patterns llama.cpp has code of its own; its general patterns are slow.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(left, byte) for left in "a." for byte in alphabet] + [(byte, "1") for byte in alphabet]
    tokens = list(dict.fromkeys([*alphabet, *(left + right for left, right in pairs)]))
    path = tmp_path / "vocabulary.gguf"
    metadata = write_vocabulary(
        path,
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [1] * len(tokens),
            "tokenizer.ggml.merges": [f"{left} {right}" for left, right in pairs],
        },
    )
    tokenizer = Tokenizer.from_gguf_metadata(metadata)
    shown = [tokenizer.encode(f"a{c}1.{c}") for c in "é²\u00a0¡"]
    shapes = {tuple(len(tokenizer.token_bytes(i)) for i in ids) for ids in shown}
    assert len(shapes) == 4  # the four classes do look different
    assert_same(tokenizer, path, code_point_texts("ac1.c"))


@pytest.mark.parametrize("pre", SUPPORTED_PRE_TOKENIZERS)
def test_every_pre_tokenizer(pre: str, smollm2_metadata: Mapping[str, Any], tmp_path: Path) -> None:
    """The first tokens of SmolLM2's vocabulary under each pre-tokenizer's name, which decides the split."""
    metadata = {k: v for k, v in smollm2_metadata.items() if k.startswith("tokenizer.ggml.")}
    tokens = metadata["tokenizer.ggml.tokens"][:3000]
    known = set(tokens)
    merges = [line for line in metadata["tokenizer.ggml.merges"] if line.replace(" ", "") in known]
    metadata |= {
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": metadata["tokenizer.ggml.token_type"][: len(tokens)],
        "tokenizer.ggml.merges": merges,
    }
    path = tmp_path / "vocabulary.gguf"
    tokenizer = Tokenizer.from_gguf_metadata(write_vocabulary(path, metadata))
    assert_same(tokenizer, path, [*CORPUS, *random_texts(EXAMPLES), *code_point_texts("acb 1cc c", step=83)])


def test_sentencepiece(tmp_path: Path) -> None:
    """A SentencePiece vocabulary with several ways to build a token and with runs of spaces.

    It has no piece that ends like a control token: from such pieces llama.cpp merges plain text into the
    control token, and we do not.
    """
    parts = (*"theingasd", "th", "he", "the", "in", "ng", "ing", "thing", "an", "and")
    words = dict.fromkeys((*parts, *(f"▁{p}" for p in parts), "▁", "▁▁", "▁▁▁", "▁▁▁▁", "é", "日", "</", "<"))
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *words]
    path = tmp_path / "vocabulary.gguf"
    metadata = write_vocabulary(
        path,
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
            "tokenizer.ggml.scores": [0.0] * 259 + [-float(i * 7919 % 61) for i in range(len(words))],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        },
    )
    phrases = st.lists(
        st.sampled_from((*parts, " ", "  ", "    ", "</s>", "é", "日", "\n", "x")), max_size=12
    )
    texts = [*CORPUS, *random_texts(EXAMPLES, phrases.map("".join))]
    assert_same(Tokenizer.from_gguf_metadata(metadata), path, texts)
