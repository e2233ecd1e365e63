"""What a checkpoint is calibrated on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.load import calibration_chats, prepare
from duologue.models.checkpoint import Checkpoint
from duologue.models.source import resolve

MESSAGES = sum(len(chat) for chat in calibration_chats())


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return resolve(smollm2_path).read()


def test_chats_are_read_in_the_models_own_template(checkpoint: Checkpoint) -> None:
    prepared = prepare(checkpoint)
    ids = prepared.calibration_ids.tolist()
    [begin] = Tokenizer.from_bytes(prepared.tokenizer).encode("<|im_start|>", parse_special=True)
    assert 10_000 < len(ids) <= 12_288
    assert ids.count(begin) >= MESSAGES


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no system role') }}", "{% if %}"])
def test_without_a_template_that_takes_them_chats_are_plain_text(
    checkpoint: Checkpoint, template: str | None
) -> None:
    prepared = prepare(replace(checkpoint, chat_template=template))
    ids = prepared.calibration_ids.tolist()
    tokenizer = Tokenizer.from_bytes(prepared.tokenizer)
    [begin] = tokenizer.encode("<|im_start|>", parse_special=True)
    assert begin not in ids
    assert calibration_chats()[-1][0]["content"] in tokenizer.decode(ids)
