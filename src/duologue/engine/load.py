"""Joins the model loader with the tokenizer, which lives in a package that the loader may not know."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.vocabulary import Vocabulary
from duologue.errors import SettingError
from duologue.kernels import isa_name
from duologue.models.checkpoint import Checkpoint
from duologue.models.load import PackedModel, Prepared, load_model


def calibration_text() -> str:
    """The text that ships with the package and on which scales are moved when a model is first loaded."""
    return (files("duologue.models") / "data" / "calibration.txt").read_text(encoding="utf-8")


def prepare(checkpoint: Checkpoint) -> Prepared:
    """The checkpoint's tokenizer, and the calibration text in its ids."""
    if checkpoint.tokenizer_folder is not None:
        tokenizer = Tokenizer.from_hf_folder(checkpoint.tokenizer_folder)
    else:
        tokenizer = Tokenizer.from_gguf_metadata(checkpoint.tokenizer_metadata)
    ids = tokenizer.encode(calibration_text(), add_bos=tokenizer.adds_bos)
    return Prepared(tokenizer=tokenizer.to_bytes(), calibration_ids=np.array(ids, dtype=np.int32))


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
