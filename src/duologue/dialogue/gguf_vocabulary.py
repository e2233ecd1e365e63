"""From GGUF tokenizer metadata to a `Vocabulary` that encodes as llama.cpp does.

Byte-level BPE differs from a plain conversion in what is not there: SmolLM2, for one, has no token for 21 of the 256
bytes. llama.cpp keeps such a byte as a symbol that blocks merges across it and then drops it; `tokenizers` would drop it
first and merge its neighbours. Filler ids beyond the vocabulary give the former behaviour.

SentencePiece vocabularies have scores and no list of merges: of neighbours that make tokens of equal score the leftmost are
joined, which no order of merges says. They are run by a kernel of our own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tokenizers import pre_tokenizers

from duologue.dialogue.pretokenizers import PreTokenizer, pre_tokenizer
from duologue.dialogue.spm_pieces import SpmPieces
from duologue.dialogue.vocabulary import END_OF_TURN_TEXTS, SpecialToken, Vocabulary
from duologue.errors import ModelLoadError, UnsupportedModelError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # GGUF token types; the others are plain text
_ALWAYS_PLAIN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # shown to the user by llama.cpp


def vocabulary_from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Builds the vocabulary from `tokenizer.ggml.*` (values as plain Python or numpy).

    Raises `ModelLoadError` for missing or contradictory entries, `UnsupportedModelError` for a tokenizer kind
    or pre-tokenizer that is not supported.
    """
    try:
        return _vocabulary(metadata)
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelLoadError(
            f"the model file's tokenizer.ggml entries are damaged ({error}); fetch it again"
        ) from error


def _vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    kind = _entry(metadata, "model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"tokenizer kind {kind!r} (tokenizer.ggml.model) is not supported; supported are 'gpt2' "
            "(byte-level BPE) and 'llama' (SentencePiece BPE)"
        )
    tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(_entry(metadata, "tokens"))]
    if len(set(tokens)) != len(tokens):
        twice = next(t for i, t in enumerate(tokens) if t in tokens[:i])
        raise ModelLoadError(f"tokenizer.ggml.tokens holds {twice!r} more than once; the file is damaged")
    types = _token_types(metadata, tokens)
    specials = _special_tokens(tokens, types)
    control = {t.text for t in specials if t.control}
    if kind == "gpt2":
        pre = pre_tokenizer(str(metadata.get("tokenizer.ggml.pre") or "default"))
        backend, has_fillers = _byte_level_backend(tokens, control, _entry(metadata, "merges"), pre)
        backend_json, pieces = json.dumps(backend, ensure_ascii=False), None
        adds_bos, default_bos, default_eos = pre.adds_bos, None, None
    else:
        backend_json, has_fillers, pieces = "", False, _pieces(tokens, _entry(metadata, "scores"))
        adds_bos, default_bos, default_eos = True, 1, 2

    bos_id = _special_id(metadata, "bos", len(tokens), default_bos)
    eos_id = _special_id(metadata, "eos", len(tokens), default_eos)
    stops = {eos_id}
    stops |= {_special_id(metadata, name, len(tokens), None) for name in ("eot", "eom")}
    stops |= {t.id for t in specials if t.control and t.text in END_OF_TURN_TEXTS}
    spm_prefix = kind == "llama" and bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    return Vocabulary(
        backend_json=backend_json,
        vocab_size=len(tokens),
        coding="byte_level" if kind == "gpt2" else "spm",
        special_tokens=specials,
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(i for i in stops if i is not None),
        adds_bos=bos_id is not None and bool(metadata.get("tokenizer.ggml.add_bos_token", adds_bos)),
        space_prefix="each" if spm_prefix else "never",
        has_fillers=has_fillers,
        pieces=pieces,
    )


def _entry(metadata: Mapping[str, Any], name: str) -> Any:
    try:
        return metadata[f"tokenizer.ggml.{name}"]
    except KeyError:
        raise ModelLoadError(
            f"the model file has no tokenizer.ggml.{name}; it is damaged or not a text model, fetch it again"
        ) from None


def _special_id(metadata: Mapping[str, Any], name: str, vocab_size: int, default: int | None) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
    return int(value) if value is not None and 0 <= int(value) < vocab_size else None


def _token_types(metadata: Mapping[str, Any], tokens: Sequence[str]) -> list[int]:
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelLoadError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens; "
            "the file is damaged"
        )
    return [int(t) for t in types]


def _special_tokens(tokens: Sequence[str], types: Sequence[int]) -> tuple[SpecialToken, ...]:
    # Converters have left end-of-turn tokens marked as plain text; llama.cpp corrects that by their spelling.
    found = []
    for i, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        control = kind in (_UNKNOWN, _CONTROL) or text in END_OF_TURN_TEXTS
        if control or kind == _USER_DEFINED:
            control = control and text not in _ALWAYS_PLAIN
            found.append(SpecialToken(i, text, control=control))
    return tuple(found)


def _byte_level_backend(
    tokens: Sequence[str], control: set[str], merges: Sequence[str], pre: PreTokenizer
) -> tuple[dict[str, Any], bool]:
    vocab = {text: i for i, text in enumerate(tokens) if text not in control}
    pairs: dict[tuple[str, str], None] = {}  # in order, the first of two equal merges counts
    for line in merges:
        at = line.find(" ", 1)
        if at > 0 and line[:at] + line[at + 1 :] not in control:
            pairs[line[:at], line[at + 1 :]] = None
    needed = set(pre_tokenizers.ByteLevel.alphabet())
    for left, right in pairs:
        needed.update((left, right, left + right))
    missing = sorted(needed - vocab.keys())
    vocab.update((text, len(tokens) + i) for i, text in enumerate(missing))
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in pre.patterns
    ]
    encode_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    words = {"type": "Sequence", "pretokenizers": [*splits, encode_bytes]}
    backend = _bpe(vocab, [f"{a} {b}" for a, b in pairs], words, ignore_merges=pre.ignore_merges)
    return backend, bool(missing)


def _pieces(tokens: Sequence[str], scores: Sequence[float]) -> SpmPieces:
    if len(scores) != len(tokens):
        raise ModelLoadError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens; the file is damaged"
        )
    return SpmPieces.of(tokens, scores)


def _bpe(
    vocab: Mapping[str, int], merges: Sequence[object], words: object, **options: bool
) -> dict[str, Any]:
    defaults = {"ignore_merges": False, "byte_fallback": False, "fuse_unk": False}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, **defaults, **options, "vocab": vocab, "merges": merges,
    }  # fmt: skip
    return cast(
        "dict[str, Any]",
        {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": words, "post_processor": None, "decoder": None, "model": model,
        },
    )  # fmt: skip
