"""Joins the model loader with the tokenizer, which lives in a package that the loader may not know."""

from __future__ import annotations

import json
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import numpy as np

from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.vocabulary import Vocabulary
from duologue.errors import InvalidRequestError, SettingError, TemplateError
from duologue.kernels import isa_name
from duologue.models.checkpoint import Checkpoint
from duologue.models.load import PackedModel, Prepared, load_model

_CALIBRATION_TOKENS = 12_288
_TEXT_TOKENS = 8_192
"""Bounds for tokenizers that take several times as many tokens for the text: they leave room for chats."""


def calibration_text() -> str:
    """The prose, code and lists that ship with the package, on which a model is calibrated when it is first loaded."""
    return (files("duologue.models") / "data" / "calibration.txt").read_text(encoding="utf-8")


def calibration_chats() -> list[list[dict[str, str]]]:
    """The chats that ship with the package for the same purpose, each a list of messages."""
    path = files("duologue.models") / "data" / "calibration_chats.json"
    chats: list[list[dict[str, str]]] = json.loads(path.read_text(encoding="utf-8"))
    return chats


def prepare(checkpoint: Checkpoint) -> Prepared:
    """The checkpoint's tokenizer, and calibration text and chats in its ids, chats in the model's own template."""
    if checkpoint.tokenizer_folder is not None:
        tokenizer = Tokenizer.from_hf_folder(checkpoint.tokenizer_folder)
    else:
        tokenizer = Tokenizer.from_gguf_metadata(checkpoint.tokenizer_metadata)
    bos = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    ids = tokenizer.encode(calibration_text())[:_TEXT_TOKENS]
    for chat in calibration_chats():
        if len(ids) >= _CALIBRATION_TOKENS:
            break
        ids += _encode_chat(tokenizer, checkpoint.chat_template, chat)[len(bos) :]
    pieces = _pieces(ids[:_CALIBRATION_TOKENS], bos)
    return Prepared(tokenizer=tokenizer.to_bytes(), calibration_ids=np.array(pieces, dtype=np.int32))


def _pieces(ids: list[int], bos: list[int]) -> list[int]:
    """As `Prepared.calibration_ids` is laid out: `bos` at the beginning of each piece, and nowhere else."""
    from duologue.models.calibrate import WINDOW_TOKENS  # not needed by a start from the packed cache

    step = WINDOW_TOKENS - len(bos)
    return [token for begin in range(0, len(ids), step) for token in (*bos, *ids[begin : begin + step])]


def _encode_chat(tokenizer: Tokenizer, source: str | None, chat: list[dict[str, str]]) -> list[int]:
    """In the model's template; as plain text if that does not take this chat. Begins with BOS if the model wants it."""
    with suppress(TemplateError, InvalidRequestError):
        template = ChatTemplate.for_tokenizer(source, tokenizer)
        return template.encode_chat(tokenizer, chat, add_generation_prompt=False)
    text = "\n\n".join(message["content"] for message in chat) + "\n\n"
    return tokenizer.encode(text, add_bos=tokenizer.adds_bos)


def load_for_engine(model: str | Path, *, progress: bool = False) -> PackedModel:
    """Resolve, read, calibrate, quantise and pack a model, or take it from the packed cache.

    Raises ModelLoadError or UnsupportedModelError, and SettingError when DUOLOGUE_ISA names no instruction set that this CPU
    has.
    """
    require_isa()
    return load_model(model, prepare, check=_check_tokenizer, progress=progress)


def require_isa() -> None:
    """Raises SettingError when DUOLOGUE_ISA names no instruction set that this CPU has."""
    try:
        isa_name()
    except RuntimeError as error:
        raise SettingError(str(error)) from None


def _check_tokenizer(model: PackedModel) -> None:
    Vocabulary.from_bytes(model.tokenizer)
