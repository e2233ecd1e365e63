"""Against the `tokenizers` library itself, on folders as Hugging Face saves them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as HfTokenizer

from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import ModelLoadError, UnsupportedModelError


def save(folder: Path, tokenizer: HfTokenizer, **configs: Any) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, config in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
    return folder


def byte_level(metadata: Mapping[str, Any]) -> HfTokenizer:
    """SmolLM2's vocabulary as a tokenizers object with special tokens, as its own repository builds it."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    hf = HfTokenizer(models.BPE({text: i for i, text in enumerate(tokens)}, merges))
    hf.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    hf.decoder = decoders.ByteLevel()
    hf.add_special_tokens([text for text, kind in zip(tokens, types, strict=True) if kind == 3])
    hf.add_tokens([AddedToken("<think>", normalized=False)])
    hf.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    return hf


def test_byte_level_folder_agrees_with_tokenizers(
    smollm2_metadata: Mapping[str, Any], corpus: list[str], tmp_path: Path
) -> None:
    hf = byte_level(smollm2_metadata)
    config = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    folder = save(tmp_path, hf, tokenizer_config=config, generation_config={"eos_token_id": [2, 0]})
    tokenizer = Tokenizer.from_bytes(Tokenizer.from_hf_folder(folder).to_bytes())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (1, 2, {0, 2})
    assert tokenizer.adds_bos  # the post-processor says so
    assert tokenizer.vocab_size == hf.get_vocab_size()
    for text in [*corpus, "a<think>b", "<think>"]:
        hf.encode_special_tokens = False
        assert tokenizer.encode(text, parse_special=True) == hf.encode(text, add_special_tokens=False).ids
        hf.encode_special_tokens = True
        ids = hf.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special=False) == hf.decode(ids, skip_special_tokens=False)


SPM_TOKENS = [
    "<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "ab", "▁ab", "▁a", "▁▁",
]  # fmt: skip
SPM_MERGES = [("a", "b"), ("▁", "ab"), ("▁", "a"), ("▁", "▁")]


@pytest.mark.parametrize("style", ["prepend", "first", "always", "never"])
def test_sentencepiece_folder_agrees_with_tokenizers(style: str, tmp_path: Path) -> None:
    vocab = {text: i for i, text in enumerate(SPM_TOKENS)}
    hf = HfTokenizer(models.BPE(vocab, SPM_MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if style == "prepend":
        hf.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        hf.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=style, split=False)
    hf.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    tokenizer = Tokenizer.from_hf_folder(save(tmp_path, hf, tokenizer_config={"eos_token": "</s>"}))
    for text in ("ab", " ab", "  ab", "ab ab", "", "ab</s>ab", "</s> ab", "</s></s>ab", "é\n", "ab  ", "▁ab"):
        assert tokenizer.encode(text, parse_special=True) == hf.encode(text, add_special_tokens=False).ids, (
            text
        )
    assert tokenizer.eos_ids == {2}


def gemma_style() -> HfTokenizer:
    """As Gemma's tokenizer.json: no prefix, runs of spaces as added tokens in their escaped spelling, line ends and tags as
    added tokens, bytes for the rest."""
    runs = ["▁▁", "▁▁▁", "\n", "\n\n", "<h1>"]
    words = ["▁", "a", "b", "ab", "▁ab", "é"]
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = [*control, *runs, *(f"<0x{b:02X}>" for b in range(256)), *words]
    merges = [("▁", "▁"), ("▁▁", "▁"), ("a", "b"), ("▁", "ab")]
    vocab = {text: i for i, text in enumerate(tokens)}
    hf = HfTokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    hf.normalizer = normalizers.Replace(" ", "▁")
    hf.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    hf.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    hf.add_special_tokens([AddedToken(text, normalized=False) for text in control])
    hf.add_tokens([AddedToken(text, normalized=False) for text in runs])
    hf.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return hf


@pytest.mark.parametrize("add_bos_token", [True, False, None])
def test_gemma_folder_agrees_with_tokenizers(add_bos_token: bool | None, tmp_path: Path) -> None:
    hf = gemma_style()
    config: dict[str, Any] = {"bos_token": "<bos>", "eos_token": "<eos>"}
    if add_bos_token is not None:
        config["add_bos_token"] = add_bos_token
    folder = save(tmp_path, hf, tokenizer_config=config, generation_config={"eos_token_id": [1, 5]})
    tokenizer = Tokenizer.from_bytes(Tokenizer.from_hf_folder(folder).to_bytes())
    assert tokenizer.adds_bos is (add_bos_token is not False)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (2, 1, {1, 5})
    texts = (
        "ab ab",
        " ab",
        "ab  ab   ab    ab",
        "a\n\n\nb",
        "<h1>ab</h1>",
        "<start_of_turn>ab<end_of_turn>\n",
        "é😀x日",
        "",
    )
    for text in texts:
        hf.encode_special_tokens = False
        assert tokenizer.encode(text, parse_special=True) == hf.encode(text, add_special_tokens=False).ids
        hf.encode_special_tokens = True
        ids = hf.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids, skip_special=False) == hf.decode(ids, skip_special_tokens=False) == text
    assert not set(tokenizer.encode("<bos><start_of_turn>")) & {2, 4}


def test_strip_flags_take_white_space_away(smollm2_metadata: Mapping[str, Any], tmp_path: Path) -> None:
    hf = byte_level(smollm2_metadata)
    hf.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    tokenizer = Tokenizer.from_hf_folder(save(tmp_path, hf))
    for text in ("a <mask> b", "a \n<mask>\t<mask> b", "<mask>", " <mask> "):
        assert tokenizer.encode(text, parse_special=True) == hf.encode(text, add_special_tokens=False).ids


def test_folders_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        Tokenizer.from_hf_folder(tmp_path)
    file = tmp_path / "tokenizer.json"
    for content in (
        "{",
        "[]",
        "{}",
        '{"model": {}}',
        '{"model": {"type": "BPE", "vocab": {}, "merges": []}}',
    ):
        file.write_text(content)
        with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
            Tokenizer.from_hf_folder(tmp_path)
    file.write_text(json.dumps({"model": {"type": "Unigram"}}))
    with pytest.raises(UnsupportedModelError, match="'Unigram'"):
        Tokenizer.from_hf_folder(tmp_path)


def tiny(folder: Path, **configs: Any) -> Path:
    return save(folder, HfTokenizer(models.BPE({"a": 0, "b": 1}, [])), **configs)


@pytest.mark.parametrize("ids", ["2", [2, "x"], True, [[]], 1.0])
def test_an_end_token_that_is_no_id_is_named(ids: Any, tmp_path: Path) -> None:
    folder = tiny(tmp_path, generation_config={"eos_token_id": ids})
    with pytest.raises(
        ModelLoadError, match=r"generation_config\.json: eos_token_id is .*, neither a token id"
    ):
        Tokenizer.from_hf_folder(folder)


def test_an_end_token_may_be_said_not_to_be(tmp_path: Path) -> None:
    assert Tokenizer.from_hf_folder(tiny(tmp_path, generation_config={"eos_token_id": -1})).eos_ids == set()


def test_settings_of_generation_that_are_no_object_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"generation_config\.json is not a JSON object"):
        Tokenizer.from_hf_folder(tiny(tmp_path, generation_config=3))


@pytest.mark.parametrize("id_", [2**40, "5", -1])
def test_an_added_token_whose_id_is_none_is_named(id_: Any, tmp_path: Path) -> None:
    folder = tiny(tmp_path)
    description = json.loads((folder / "tokenizer.json").read_text())
    description["added_tokens"] = [{"id": id_, "content": "<x>", "special": True}]
    (folder / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ModelLoadError, match=r"added token '<x>' has the id"):
        Tokenizer.from_hf_folder(folder)
