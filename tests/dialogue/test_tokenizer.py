from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError

FRAGMENTS = (
    "<|",
    "im_start",
    "im_end",
    "|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<file_sep>",
    "a",
    " ",
    "\n",
    "1",
)


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary of a few letters, as GGUF spells it."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["<e>", "a", "b", "c", "Ġ", "ab", "Ġab", "<u>"],
        "tokenizer.ggml.token_type": np.array([3, 1, 1, 1, 1, 1, 1, 4], dtype=np.int32),
        "tokenizer.ggml.merges": ["a b", "Ġ ab"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.bos_token_id": 0,
    }
    for key, value in changes.items():
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
        else:
            metadata[f"tokenizer.ggml.{key}"] = value
    return metadata


def test_corpus_gives_the_ids_of_llama_cpp(
    smollm2: Tokenizer, corpus: list[str], golden: list[tuple[list[int], list[int]]]
) -> None:
    assert len(corpus) == len(golden) >= 150
    for text, (plain, special) in zip(corpus, golden, strict=True):
        assert smollm2.encode(text) == plain, repr(text)
        assert smollm2.encode(text, parse_special=True) == special, repr(text)


def test_the_golden_data_tells_the_two_modes_apart(golden: list[tuple[list[int], list[int]]]) -> None:
    assert sum(plain != special for plain, special in golden) > 20


def test_packed_form_is_the_same_tokenizer(smollm2: Tokenizer, corpus: list[str]) -> None:
    again = Tokenizer.from_bytes(smollm2.to_bytes())
    for text in corpus:
        assert again.encode(text, parse_special=True) == smollm2.encode(text, parse_special=True)
    for name in ("vocab_size", "bos_id", "eos_id", "eos_ids", "adds_bos", "special_tokens"):
        assert getattr(again, name) == getattr(smollm2, name)
    assert again.to_bytes() == smollm2.to_bytes()


def test_damaged_packed_form_is_refused_at_any_length() -> None:
    packed = Tokenizer.from_gguf_metadata(tiny_metadata()).to_bytes()
    for size in (*range(24), *range(24, len(packed), 41), len(packed) - 1):
        with pytest.raises(ModelLoadError):
            Tokenizer.from_bytes(packed[:size])
    with pytest.raises(ModelLoadError, match="another version"):
        Tokenizer.from_bytes(b"DUOTOK99" + packed[8:])


def test_what_smollm2_says_about_itself(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.bos_id == 1
    assert smollm2.eos_id == 2
    assert smollm2.eos_ids == {0, 2}  # <|endoftext|>, <|im_end|>
    assert not smollm2.adds_bos
    assert smollm2.special_tokens["<|im_start|>"] == 1
    assert len(smollm2.special_tokens) == 17


def test_decoding_restores_all_that_the_vocabulary_can_spell(
    smollm2: Tokenizer, smollm2_bytes: dict[bytes, int], corpus: list[str]
) -> None:
    restored = 0
    for text in corpus:
        if all(bytes((b,)) in smollm2_bytes for b in text.encode()):
            assert smollm2.decode(smollm2.encode(text), skip_special=False) == text
            assert smollm2.decode(smollm2.encode(text, parse_special=True), skip_special=False) == text
            restored += 1
    assert restored > 0.9 * len(corpus)


def test_a_byte_without_a_token_is_dropped_and_keeps_its_neighbours_apart(smollm2: Tokenizer) -> None:
    the = smollm2.encode("the")
    assert len(the) == 1
    assert smollm2.encode("th\x06e") == smollm2.encode("th") + smollm2.encode("e")


def test_skip_special_leaves_control_tokens_out(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("<|im_start|>user\nHi<|im_end|>", parse_special=True)
    assert smollm2.decode(ids) == "user\nHi"
    assert smollm2.decode(ids, skip_special=False) == "<|im_start|>user\nHi<|im_end|>"


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3)).map("".join))
def test_text_never_yields_a_control_token(smollm2: Tokenizer, text: str) -> None:
    assert not set(smollm2.encode(text)) & set(smollm2.special_tokens.values())


@settings(deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_split_control_joins_back(smollm2: Tokenizer, text: str) -> None:
    pieces = smollm2.split_control(text)
    spelled = "".join(p if isinstance(p, str) else smollm2.decode([p], skip_special=False) for p in pieces)
    assert spelled == text
    assert "" not in pieces
    assert smollm2.encode_pieces(pieces) == smollm2.encode(text, parse_special=True)


def test_add_bos(smollm2: Tokenizer) -> None:
    assert smollm2.encode("a", add_bos=True) == [1, *smollm2.encode("a")]
    assert smollm2.encode("", add_bos=True) == [1]


@pytest.mark.parametrize("text", ["\ud83d", "ab\udc00", "\ude00\ud83d"])
def test_lone_surrogate_is_a_request_error(smollm2: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"lone surrogate U\+D[89A-F]") as caught:
        smollm2.encode(text)
    assert caught.value.code == "invalid_unicode"


def test_ids_past_the_vocabulary_stand_for_nothing(smollm2: Tokenizer) -> None:
    assert smollm2.token_bytes(smollm2.vocab_size) == b""
    assert smollm2.token_bytes(10**9) == b""
    with pytest.raises(ValueError, match="negative"):
        smollm2.token_bytes(-1)


def test_threads_share_a_tokenizer(smollm2: Tokenizer, corpus: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(smollm2.encode, corpus * 4))
    assert results == [smollm2.encode(text) for text in corpus] * 4


def test_user_defined_tokens_are_always_found() -> None:
    tokenizer = Tokenizer.from_gguf_metadata(tiny_metadata())
    assert tokenizer.encode("ab<u> ab<e>") == [5, 7, 6]  # '<', 'e', '>' have no tokens here
    assert tokenizer.encode("ab<u> ab<e>", parse_special=True) == [5, 7, 6, 0]
    assert tokenizer.decode([5, 7, 6, 0]) == "ab<u> ab"


def test_a_merge_cannot_make_a_control_token() -> None:
    tokens = ["<", "e", ">", "<e", "<e>"]
    metadata = tiny_metadata(
        tokens=tokens, token_type=[1, 1, 1, 1, 3], merges=["< e", "<e >"], eos_token_id=4, bos_token_id=4
    )
    tokenizer = Tokenizer.from_gguf_metadata(metadata)
    assert 4 not in tokenizer.encode("<e>")
    assert tokenizer.encode("<e>", parse_special=True) == [4]


def test_the_longest_special_token_is_found_first() -> None:
    tokens = ["a", "<x>", "<x><y>", "<y>"]
    metadata = tiny_metadata(
        tokens=tokens, token_type=[1, 3, 3, 3], merges=[], eos_token_id=1, bos_token_id=1
    )
    tokenizer = Tokenizer.from_gguf_metadata(metadata)
    assert tokenizer.encode("a<x><y>a<y><x>", parse_special=True) == [0, 2, 0, 3, 1]


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"pre": "jais-9"}, UnsupportedModelError, "'jais-9'"),
        ({"model": "rwkv"}, UnsupportedModelError, "'rwkv'"),
        ({"model": None}, ModelLoadError, r"tokenizer\.ggml\.model"),
        ({"tokens": None}, ModelLoadError, r"tokenizer\.ggml\.tokens"),
        ({"merges": None}, ModelLoadError, r"tokenizer\.ggml\.merges"),
        ({"token_type": [1, 1]}, ModelLoadError, "2 entries for 8 tokens"),
        ({"tokens": 7}, ModelLoadError, "damaged"),
        ({"merges": [1, 2]}, ModelLoadError, "damaged"),
        ({"eos_token_id": "x"}, ModelLoadError, "damaged"),
        ({"tokens": ["a", "b", "c", "a", "d", "e", "f", "g"]}, ModelLoadError, "'a' more than once"),
        ({"model": "llama"}, ModelLoadError, r"tokenizer\.ggml\.scores"),
        ({"model": "llama", "scores": [0.0]}, ModelLoadError, "1 entries for 8 tokens"),
    ],
)
def test_bad_metadata_is_refused_by_name(
    changes: Mapping[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Tokenizer.from_gguf_metadata(tiny_metadata(**changes))


def spm_tokenizer(**changes: Any) -> Tokenizer:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "ab", "▁ab"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1],
        "tokenizer.ggml.scores": [0.0] * 259 + [-3.0, -4.0, -5.0, -1.0, -2.0],
        **changes,
    }
    return Tokenizer.from_gguf_metadata(metadata)


def test_sentencepiece_prefixes_a_space_at_the_start_and_after_special_tokens() -> None:
    tokenizer = spm_tokenizer()
    assert tokenizer.adds_bos
    assert tokenizer.encode("ab") == [263]
    assert tokenizer.encode(" ab") == [259, 263]
    assert tokenizer.encode("ab</s>ab", parse_special=True) == [263, 2, 263]
    assert tokenizer.decode([263, 259, 261]) == "ab b"
    plain = spm_tokenizer(**{"tokenizer.ggml.add_space_prefix": False})
    assert plain.encode("ab ab") == [262, 263]
    assert plain.decode([263]) == " ab"


def test_sentencepiece_falls_back_to_bytes() -> None:
    tokenizer = spm_tokenizer()
    assert tokenizer.encode("aé\n") == [259, 260, 3 + 0xC3, 3 + 0xA9, 3 + 0x0A]
    assert tokenizer.decode(tokenizer.encode("aé\n")) == "aé\n"
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"


def test_sentencepiece_merges_through_a_character_without_a_token() -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "a", "aé"]
    tokenizer = spm_tokenizer(
        **{
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1],
            "tokenizer.ggml.scores": [0.0] * 261,
            "tokenizer.ggml.add_space_prefix": False,
        }
    )
    tokenizer = Tokenizer.from_bytes(tokenizer.to_bytes())
    assert tokenizer.encode("aé") == [260]
    assert tokenizer.encode("éa") == [3 + 0xC3, 3 + 0xA9, 259]
