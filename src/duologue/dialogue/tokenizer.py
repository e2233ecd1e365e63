"""Text to token ids and back, with llama.cpp's tokenizer as the reference.

Special tokens are split off here, in Python, and plain text goes to a `tokenizers` object, or to the kernel for
SentencePiece vocabularies, that does not know them. That keeps the promise that text alone never yields a control token:
`encode` finds them only with `parse_special=True`, and nothing that the merges produce can be one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers

from duologue.dialogue.gguf_vocabulary import vocabulary_from_gguf
from duologue.dialogue.hf_vocabulary import vocabulary_from_hf_folder
from duologue.dialogue.marking import Spellings
from duologue.dialogue.special_splitter import SpecialSplitter
from duologue.dialogue.vocabulary import Vocabulary
from duologue.errors import InvalidRequestError, ModelLoadError
from duologue.kernels.spm import SpmVocabulary

_SPACE_STAND_IN = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")


def _byte_stand_ins() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte, inverted: printable bytes stand for themselves, the others are
    numbered from U+0100 in ascending order."""
    plain = [b for b in range(256) if chr(b) in pre_tokenizers.ByteLevel.alphabet()]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_stand_ins()


class Tokenizer:
    """Immutable after construction and safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._specials = {t.id: t for t in vocabulary.special_tokens}
        control = [t for t in vocabulary.special_tokens if t.control]
        self._plain = _plain_encoder(vocabulary, [t.id for t in control])
        self._all_found = SpecialSplitter(vocabulary.special_tokens)
        self._always_found = SpecialSplitter(t for t in vocabulary.special_tokens if not t.control)
        self._long_control = SpecialSplitter(t for t in control if len(t.text) > 1)
        self._control_ids = {t.text: t.id for t in control}
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_gguf_metadata(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """From GGUF's `tokenizer.ggml.*` entries, given as plain Python or numpy values.

        Raises `ModelLoadError` for missing or contradictory entries and `UnsupportedModelError`, naming it,
        for a tokenizer kind or pre-tokenizer that is not supported.
        """
        return cls(vocabulary_from_gguf(metadata))

    @classmethod
    def from_hf_folder(cls, path: str | Path) -> Tokenizer:
        """From a folder with `tokenizer.json` (and, for the special ids, the configuration files beside
        it)."""
        return cls(vocabulary_from_hf_folder(Path(path)))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Tokenizer:
        """Inverse of `to_bytes`; `ModelLoadError` if `data` is something else."""
        return cls(Vocabulary.from_bytes(data))

    def to_bytes(self) -> bytes:
        """The whole tokenizer, for the packed model cache."""
        return self._vocabulary.to_bytes()

    @property
    def vocab_size(self) -> int:
        """Number of ids that have a meaning: all are below it."""
        return self._vocabulary.vocab_size

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The one end-of-text id that the model names; `eos_ids` has all that end a reply."""
        return self._vocabulary.eos_id

    @property
    def adds_bos(self) -> bool:
        """Whether the model expects every sequence to begin with `bos_id`."""
        return self._vocabulary.adds_bos

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a reply: end of text and end of turn."""
        return self._vocabulary.eos_ids

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Spelling to id of the control tokens, those that text must never yield by itself."""
        return self._control_ids

    @cached_property
    def control_spellings(self) -> Spellings:
        """Those of `special_tokens`, to be looked for in text."""
        return Spellings(self._control_ids)

    def encode(self, text: str, *, parse_special: bool = False, add_bos: bool = False) -> list[int]:
        """Ids of `text`. With `parse_special`, spellings of control tokens become these tokens; without, they
        are text. With `add_bos`, `bos_id` comes first if there is one.

        Raises `InvalidRequestError` if `text` holds a lone surrogate and so is not Unicode text.
        """
        ids = self.encode_pieces(self._all_found.split([text]) if parse_special else [text])
        if add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        return ids

    def split_control(self, text: str) -> list[int | str]:
        """`text` cut at its control tokens: ids of these and, between them, non-empty text.

        A spelling of one character is left in the text: there is no place inside it for a mark that says that
        it is not the token.
        """
        return self._long_control.split([text])

    def encode_pieces(self, pieces: Iterable[int | str]) -> list[int]:
        """Ids of a sequence of ready ids and text; control tokens spelled in the text stay text."""
        vocabulary = self._vocabulary
        ids: list[int] = []
        prefix = vocabulary.space_prefix != "never"
        for piece in self._always_found.split(pieces):
            if isinstance(piece, int):
                ids.append(piece)
                prefix = vocabulary.space_prefix == "each"
            elif piece:
                ids += self._encode_text(piece, prefix=prefix)
                prefix = False
        return ids

    def encode_inner(self, text: str) -> list[int]:
        """Ids of text that goes on after other text: no special tokens and no space put before it."""
        return self._encode_text(text, prefix=False)

    def _encode_text(self, text: str, *, prefix: bool) -> list[int]:
        surrogate = _SURROGATE.search(text)
        if surrogate:
            raise InvalidRequestError(
                f"text holds the lone surrogate U+{ord(surrogate[0]):04X}, half of a character; "
                "send valid Unicode",
                code="invalid_unicode",
            )
        vocabulary = self._vocabulary
        if vocabulary.coding == "spm":
            text = text.replace(" ", _SPACE_STAND_IN)
            if prefix and (vocabulary.prefix_doubles or not text.startswith(_SPACE_STAND_IN)):
                text = _SPACE_STAND_IN + text
        if isinstance(self._plain, SpmVocabulary):
            return self._plain.encode(text)
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if vocabulary.has_fillers and ids and max(ids) >= vocabulary.vocab_size:
            ids = [i for i in ids if i < vocabulary.vocab_size]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD. Control tokens are left out or spelled."""
        data = b"".join(self.token_bytes(i) for i in ids if not (skip_special and self.is_control(i)))
        return self.strip_prefix(data).decode("utf-8", errors="replace")

    def strip_prefix(self, data: bytes) -> bytes:
        """Takes off the space that encoding put before the first word, from the first bytes of a decoded
        text."""
        if self._vocabulary.space_prefix != "never" and data.startswith(b" "):
            return data[1:]
        return data

    def is_control(self, token_id: int) -> bool:
        special = self._specials.get(token_id)
        return special is not None and special.control

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token, or a few more: a text of n bytes has at least n / this many."""
        if self._vocabulary.pieces is not None:
            return self._vocabulary.pieces.longest_bytes
        return max(len(self._token_bytes(token)) for token in range(self.vocab_size))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for (a control token: its spelling).

        Ids past the vocabulary, which models with a padded embedding can produce, stand for nothing. Negative
        ids are a `ValueError`.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._token_bytes(token_id)
            if token_id < self.vocab_size:  # there is no end to the others
                self._bytes[token_id] = known
        return known

    def _token_bytes(self, token_id: int) -> bytes:
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative")
        special = self._specials.get(token_id)
        if special is not None:
            return special.text.encode()
        if token_id >= self.vocab_size:
            return b""
        if isinstance(self._plain, SpmVocabulary):
            return self._spm_bytes(token_id)
        text = self._plain.id_to_token(token_id)
        if text is None:
            return b""
        if self._vocabulary.coding == "byte_level":
            return b"".join(bytes((_BYTE_OF[c],)) if c in _BYTE_OF else c.encode() for c in text)
        byte = _BYTE_TOKEN.match(text)
        return bytes((int(byte[1], 16),)) if byte else text.replace(_SPACE_STAND_IN, " ").encode()

    def _spm_bytes(self, token_id: int) -> bytes:
        pieces = self._vocabulary.pieces
        assert pieces is not None
        byte = pieces.byte_of(token_id)
        return pieces[token_id].replace(_SPACE_STAND_IN.encode(), b" ") if byte is None else bytes((byte,))


def _plain_encoder(vocabulary: Vocabulary, control_ids: list[int]) -> Backend | SpmVocabulary:
    """What turns text without special tokens into ids. Raises `ModelLoadError` when the vocabulary makes none."""
    try:
        if vocabulary.pieces is not None:
            return vocabulary.pieces.searcher(control_ids)
        return Backend.from_str(vocabulary.backend_json)
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(f"the tokenizer cannot be built: {error}") from error
