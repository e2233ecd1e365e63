"""What a checkpoint is calibrated on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duologue import Engine, SamplingParams
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.load import calibration_chats, prepare
from duologue.models.checkpoint import Checkpoint
from duologue.models.random_model import write_random_tokenizer
from duologue.models.source import resolve
from duologue.models.spec import ModelSpec
from tests.models.family_case import LLAMA3, QWEN2, QWEN3, write_family

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


@pytest.mark.parametrize("spec", [LLAMA3, QWEN2, QWEN3], ids=lambda spec: spec.architecture)
def test_families_are_served(tmp_path: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a folder through calibration and packing to a chat, and again from the packed file."""
    monkeypatch.setenv("DUOLOGUE_CACHE", str(tmp_path / "cache"))
    folder = write_family(tmp_path / "model", spec)
    write_random_tokenizer(folder, spec.vocab_size)
    chat = [{"role": "user", "content": "hello, " * 30}]
    replies = []
    for _ in range(2):
        with Engine.load(folder, kv_memory_bytes=8 << 20, threads=2) as engine:
            replies.append(engine.generate(chat, SamplingParams(temperature=0.0, max_tokens=8)).token_ids)
    assert replies[0] == replies[1]
    assert replies[0]
