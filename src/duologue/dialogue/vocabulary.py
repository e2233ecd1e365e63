"""What a tokenizer is made of, independent of the file it came from, and its packed form.

Plain text is turned into ids by a `tokenizers` object, which `backend_json` describes, or by `pieces`. Control tokens are
found by neither: they reach a sequence only through `special_tokens`, so no text can spell one by merging. Ids of the
former at and above `vocab_size` are fillers: symbols that take part in merging and are no tokens of the model.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from dataclasses import dataclass, field
from typing import Literal

from duologue.dialogue.spm_pieces import SpmPieces
from duologue.errors import ModelLoadError

_MAGIC = b"DUOTOK02"


# Spellings by which known chat formats end a turn, whatever the file calls `eos` or marks as control tokens.
END_OF_TURN_TEXTS = frozenset(
    (
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>",
        "<end_of_turn>", "<|return|>", "<|call|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "</s>",
        "<end_of_utterance>", "<｜end▁of▁sentence｜>",
    )
)  # fmt: skip


@dataclass(frozen=True)
class SpecialToken:
    """A token found in text by its exact spelling, before any splitting.

    `control` tokens are found only where the caller allows it; the others always are. `lstrip`/`rstrip`:
    white space before/after belongs to the token.
    """

    id: int
    text: str
    control: bool = True
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class Vocabulary:
    """Everything that `Tokenizer` needs: either `backend_json` or `pieces`, and what surrounds them.

    `coding` says what a token's text means: `byte_level` (GPT-2's printable stand-ins for bytes) or `spm`
    (U+2581 for a space, `<0xNN>` for single bytes). `space_prefix` is where text gets a leading space: never,
    after the start and every special token (`each`), or at the start only (`first`); with `prefix_doubles`,
    also text that begins with one already. `has_fillers`: the backend knows ids past the vocabulary, which are
    left out of a sequence.
    """

    backend_json: str = field(repr=False)
    vocab_size: int
    coding: Literal["byte_level", "spm"]
    special_tokens: tuple[SpecialToken, ...] = ()
    bos_id: int | None = None
    eos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    adds_bos: bool = False
    space_prefix: Literal["never", "each", "first"] = "never"
    prefix_doubles: bool = True
    has_fillers: bool = False
    pieces: SpmPieces | None = field(default=None, repr=False)

    def to_bytes(self) -> bytes:
        names = (f.name for f in dataclasses.fields(self) if f.name not in ("backend_json", "pieces"))
        header = {name: getattr(self, name) for name in names}
        header["special_tokens"] = [dataclasses.astuple(t) for t in self.special_tokens]
        header["eos_ids"] = sorted(self.eos_ids)
        encoded = json.dumps(header).encode()
        body = self.backend_json.encode() if self.pieces is None else self.pieces.to_bytes()
        return _MAGIC + struct.pack("<I", len(encoded)) + encoded + body

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Vocabulary:
        """Inverse of `to_bytes`; `ModelLoadError` if `data` is something else."""
        data = bytes(data)
        if data[: len(_MAGIC)] != _MAGIC:
            raise ModelLoadError("the packed tokenizer is damaged or of another version")
        start = len(_MAGIC) + 4
        try:
            (size_bytes,) = struct.unpack_from("<I", data, len(_MAGIC))
            header = json.loads(data[start : start + size_bytes])
            header["special_tokens"] = tuple(SpecialToken(*t) for t in header["special_tokens"])
            header["eos_ids"] = frozenset(header["eos_ids"])
            body = data[start + size_bytes :]
            pieces = SpmPieces.from_bytes(body)
            if pieces is not None:
                return cls(backend_json="", pieces=pieces, **header)
            return cls(backend_json=body.decode(), **header)
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ModelLoadError(f"the packed tokenizer is damaged ({error})") from error
