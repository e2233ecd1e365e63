"""SentencePiece-style tokenization. See `reference.spm` for what is computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels import _native

Ints32 = npt.NDArray[np.int32]


class SpmVocabulary:
    """Tokens that are found in text by joining neighbours, those of the best score first. Immutable, for any thread."""

    def __init__(
        self,
        text: bytes,
        ends: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
        *,
        hidden: Ints32,
        byte_ids: Ints32,
    ) -> None:
        """Token i is the UTF-8 `text[ends[i - 1] : ends[i]]` with `scores[i]`, ends and scores [n].

        `hidden` holds ids that are never found in text; `byte_ids` [256] the id for each byte of characters without a token,
        negative where there is none. Raises ValueError when these do not fit together or a score is NaN.
        """
        self._native = _native.SpmVocabulary(
            text,
            np.ascontiguousarray(ends, dtype=np.int64),
            np.ascontiguousarray(scores, dtype=np.float32),
            np.ascontiguousarray(hidden, dtype=np.int32),
            np.ascontiguousarray(byte_ids, dtype=np.int32),
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text, spelled as the tokens are (white space escaped). Raises UnicodeEncodeError for lone surrogates."""
        return self._native.encode(text.encode())
