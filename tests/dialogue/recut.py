"""Token ids that spell a text otherwise than the tokenizer would, as a model may."""

from __future__ import annotations

import random

from duologue.dialogue.tokenizer import Tokenizer


def recut(tokenizer: Tokenizer, text: str, seed: int = 0) -> list[int]:
    """Ids of `text`, encoded in short pieces."""
    choose = random.Random(seed)
    ids: list[int] = []
    at = 0
    while at < len(text):
        size = choose.randint(1, 3)
        ids += tokenizer.encode(text[at : at + size])
        at += size
    return ids
