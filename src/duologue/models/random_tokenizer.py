"""A tokenizer for random models: byte-level BPE over all 256 bytes, so that any text encodes, with merges of letters and ChatML's
control tokens.
"""

from __future__ import annotations

import itertools
from typing import Any

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


def random_tokenizer(vocab_size: int) -> tuple[dict[str, Any], dict[str, int]]:
    """A tokenizer.json and its ids: control tokens first, then bytes, then pairs of letters, then pairs of these.

    Raises ValueError when `vocab_size` is too small for all bytes and control tokens, or larger than there are merges.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    symbols = [chr(b) for b in plain] + [chr(0x100 + i) for i in range(len(others))]
    space = chr(0x100 + others.index(0x20))
    firsts = space + _LETTERS + _LETTERS.upper()
    pairs = [(a, b) for a in firsts for b in _LETTERS]
    ends = ["".join(pair) for pair in itertools.product(_LETTERS, repeat=2)]
    room = vocab_size - len(CONTROL_TOKENS) - len(symbols)
    most = len(pairs) + len(pairs) * len(ends)
    if not 0 <= room <= most:
        low = len(CONTROL_TOKENS) + len(symbols)
        raise ValueError(f"vocab {vocab_size} must be between {low} and {low + most}")
    fours = ((a + b, end) for a, b in pairs for end in ends)
    merges = list(itertools.islice(itertools.chain(pairs, fours), room))
    texts = [*CONTROL_TOKENS, *symbols, *(a + b for a, b in merges)]
    ids = {text: i for i, text in enumerate(texts)}
    added = [
        {
            "id": ids[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for text in CONTROL_TOKENS
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": ids, "merges": [list(pair) for pair in merges],
        },
    }, ids  # fmt: skip
