"""The tokens of a SentencePiece-style vocabulary with their scores, and their packed form.

Held as arrays and not as strings: a start with a quarter of a million tokens must not take a second for them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.kernels.spm import SpmVocabulary

_MAGIC = b"\0SPM"
_BYTE_TOKEN = re.compile(rb"<0x([0-9A-Fa-f]{2})>\Z")
_BYTE_TOKEN_BYTES = 6


@dataclass(frozen=True, eq=False)
class SpmPieces:
    """Token i is the UTF-8 `text[ends[i - 1] : ends[i]]`, with U+2581 for a space or `<0xNN>` for a byte."""

    text: bytes
    ends: npt.NDArray[np.int64]  # [n]
    scores: npt.NDArray[np.float32]  # [n]

    @classmethod
    def of(cls, tokens: Sequence[str], scores: Sequence[float]) -> SpmPieces:
        encoded = [token.encode() for token in tokens]
        return cls(
            b"".join(encoded),
            np.cumsum([len(token) for token in encoded], dtype=np.int64),
            np.asarray(scores, dtype=np.float32),
        )

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, token_id: int) -> bytes:
        """As it is spelled. `token_id` must be below the number of tokens."""
        begin = int(self.ends[token_id - 1]) if token_id else 0
        return self.text[begin : int(self.ends[token_id])]

    @property
    def longest_bytes(self) -> int:
        return int(np.diff(self.ends, prepend=0).max(initial=1))

    def byte_of(self, token_id: int) -> int | None:
        """The byte that this token stands for alone, None if it is text."""
        match = _BYTE_TOKEN.match(self[token_id])
        return int(match[1], 16) if match else None

    def searcher(self, hidden: Sequence[int]) -> SpmVocabulary:
        """What finds the tokens in text, all but `hidden`. Raises ValueError when the arrays do not fit together."""
        byte_ids = np.full(256, -1, dtype=np.int32)
        sizes = np.diff(self.ends, prepend=0)
        likely = np.flatnonzero(sizes == _BYTE_TOKEN_BYTES)
        second = np.frombuffer(self.text, dtype=np.uint8)[self.ends[likely] - _BYTE_TOKEN_BYTES + 1]
        for token_id in likely[second == ord("0")].tolist():
            byte = self.byte_of(token_id)
            if byte is not None:
                byte_ids[byte] = token_id
        return SpmVocabulary(
            self.text, self.ends, self.scores, hidden=np.asarray(hidden, dtype=np.int32), byte_ids=byte_ids
        )

    def to_bytes(self) -> bytes:
        sizes = np.diff(self.ends, prepend=0).astype("<u4")
        head = _MAGIC + struct.pack("<I", len(self))
        return head + sizes.tobytes() + self.scores.astype("<f4").tobytes() + self.text

    @classmethod
    def from_bytes(cls, data: bytes) -> SpmPieces | None:
        """Inverse of `to_bytes`, None if `data` begins otherwise. Raises ValueError when it is cut short."""
        if not data.startswith(_MAGIC):
            return None
        if len(data) < 8:
            raise ValueError("no token count")
        (count,) = struct.unpack_from("<I", data, 4)
        sizes = np.frombuffer(data, dtype="<u4", count=count, offset=8)
        scores = np.frombuffer(data, dtype="<f4", count=count, offset=8 + 4 * count)
        ends = np.cumsum(sizes, dtype=np.int64)
        text = data[8 + 8 * count :]
        if len(text) != (int(ends[-1]) if count else 0):
            raise ValueError("token sizes and text do not agree")
        return cls(text, ends, scores)
