"""Models without a chat template, and models that expect a token at the beginning of every text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duologue import Engine
from duologue.dialogue.default_template import DEFAULT_STOPS
from duologue.dialogue.tokenizer import Tokenizer
from duologue.engine.load import load_for_engine, prepare
from duologue.engine.sampling_params import SamplingParams
from duologue.models.calibrate import WINDOW_TOKENS
from duologue.models.source import resolve
from tests.engine.base_case import base_model

CHAT = [{"role": "user", "content": "Hello there"}]


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_model(tmp_path_factory.mktemp("base") / "base", add_bos_token=True)


@pytest.fixture(scope="module")
def base_engine(base_folder: Path) -> Iterator[Engine]:
    with Engine.load(base_folder, kv_memory_bytes=4 << 20, threads=1) as engine:
        yield engine


def test_a_chat_is_written_as_text_and_begins_with_bos(base_engine: Engine) -> None:
    ids = base_engine.encode_prompt(CHAT)
    assert ids[0] == base_engine.tokenizer.bos_id
    assert ids.count(ids[0]) == 1
    assert base_engine.tokenizer.decode(ids) == "User: Hello there\nAssistant:"
    assert base_engine.encode_prompt("Hello")[0] == ids[0]
    assert base_engine.encode_prompt([5, 6]) == [5, 6]


def test_a_reply_in_a_chat_ends_at_the_templates_stops(
    base_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=24, stop=("never said",))
    assert base_engine.chat_params(greedy).stop == ("never said", *DEFAULT_STOPS)
    text = base_engine.generate(CHAT, greedy).text
    stop = text[len(text) // 2 :][:3]
    assert len(stop) == 3
    monkeypatch.setattr(base_engine.template, "stops", (stop,))
    replies = (base_engine.generate(CHAT, greedy), base_engine.generate_choices(CHAT, 2, greedy)[1])
    for reply in replies:
        assert reply.text == text[: text.index(stop)]
        assert reply.finish_reason == "stop"
    streamed = "".join(event.text for event in base_engine.stream(CHAT, greedy))
    assert streamed == text[: text.index(stop)]
    # Not of a text or of ids, and not where ends are ignored.
    assert base_engine.generate(base_engine.encode_prompt(CHAT), greedy).text == text
    ignoring = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    assert stop in base_engine.generate(CHAT, ignoring).text


def test_every_piece_of_the_calibration_text_begins_with_bos(base_folder: Path) -> None:
    checkpoint = resolve(base_folder).read()
    prepared = prepare(checkpoint)
    bos = Tokenizer.from_bytes(prepared.tokenizer).bos_id
    ids = prepared.calibration_ids
    assert ids[::WINDOW_TOKENS].tolist() == [bos] * -(-len(ids) // WINDOW_TOKENS)
    assert np.count_nonzero(ids == bos) == -(-len(ids) // WINDOW_TOKENS)


def test_calibration_of_a_model_without_bos_is_one_text(tmp_path: Path) -> None:
    checkpoint = resolve(base_model(tmp_path / "plain", add_bos_token=False)).read()
    prepared = prepare(checkpoint)
    tokenizer = Tokenizer.from_bytes(prepared.tokenizer)
    assert np.count_nonzero(prepared.calibration_ids == tokenizer.bos_id) == 0


def test_a_packed_base_model_is_the_same(base_folder: Path, base_engine: Engine) -> None:
    packed = load_for_engine(base_folder)
    assert packed.chat_template is None
    tokenizer = Tokenizer.from_bytes(packed.tokenizer)
    assert tokenizer.adds_bos
    assert tokenizer.bos_id == base_engine.tokenizer.bos_id
