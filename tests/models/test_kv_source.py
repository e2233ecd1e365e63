"""The KV of a model by its names, without reading weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.gguf_file import read_gguf_file
from duologue.models.gguf_spec import gguf_spec
from duologue.models.kv_accounting import KvModel
from duologue.models.kv_source import kv_model
from duologue.models.presets import preset
from duologue.models.random_model import random_spec, random_weights
from duologue.models.spec import ModelSpec
from tests.models.family_case import GEMMA2, GEMMA3, MISTRAL
from tests.models.gguf_case import write_gguf

SPEC = random_spec(layers=3, heads=4, kv_heads=2)
MISTRAL_GGUF = dataclasses.replace(MISTRAL, architecture="llama")  # whose files call it so


def test_a_preset() -> None:
    assert kv_model("duologue-1m") == KvModel.of_spec("duologue-1m", preset("1m"))
    with pytest.raises(UnsupportedModelError, match="'2m'"):
        kv_model("duologue-2m")


def test_a_folder_and_its_config_alone(tiny_model_dirs: Mapping[str, Path], tmp_path: Path) -> None:
    folder = tiny_model_dirs["gqa"]
    model = kv_model(str(folder))
    assert model.name == "tiny-gqa"
    assert model.layers == KvModel.of_spec("m", random_spec(kv_heads=2)).layers
    config = tmp_path / "some.json"  # no weights beside it
    config.write_text((folder / "config.json").read_text())
    assert kv_model(str(config)).layers == model.layers
    assert kv_model(str(config)).name == "some"


def test_a_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", SPEC, random_weights(SPEC, 0))
    assert kv_model(str(path)).layers == KvModel.of_spec("m", SPEC).layers


GGUF_ODDITIES: list[tuple[ModelSpec, dict[str, Any]]] = [
    (MISTRAL_GGUF, {}),
    (MISTRAL_GGUF, {"llama.attention.sliding_window": 0}),
    (GEMMA2, {}),
    (GEMMA2, {"gemma2.attention.sliding_window": None}),
    (GEMMA2, {"gemma2.attention.sliding_window_pattern": 4}),
    (GEMMA2, {"gemma2.attention.sliding_window_pattern": [True, True, False, False]}),
    (GEMMA2, {"gemma2.attention.key_length_swa": 32}),
    (GEMMA3, {}),
    (GEMMA3, {"gemma3.attention.sliding_window": None}),
    (GEMMA3, {"gemma3.attention.sliding_window_pattern": 0}),
    (GEMMA3, {"gemma3.attention.sliding_window_pattern": 3, "gemma3.attention.key_length_swa": 32}),
    (GEMMA3, {"gemma3.attention.shared_kv_layers": 2}),
]


@pytest.mark.parametrize(("spec", "change"), GGUF_ODDITIES)
def test_gguf_files_are_counted_as_the_engine_reads_them(
    spec: ModelSpec, change: dict[str, Any], tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", spec, random_weights(spec, 0), metadata=change)
    model, read = kv_model(str(path)), gguf_spec(read_gguf_file(path))
    assert model.layers == KvModel.of_spec("m", read).layers
    assert model.context_tokens == read.context_tokens
    assert model.assumptions == ()


def test_a_gguf_file_that_the_engine_refuses_is_counted_and_that_is_said(tmp_path: Path) -> None:
    change = {"gemma3.rope.scaling.type": "yarn"}
    path = write_gguf(tmp_path / "m.gguf", GEMMA3, random_weights(GEMMA3, 0), metadata=change)
    model = kv_model(str(path))
    assert model.layers == KvModel.of_spec("m", GEMMA3).layers
    assert "gemma3.rope.scaling.type = 'yarn' is not supported" in model.assumptions[0]
    assert "one layer in 6 is global" in model.assumptions[1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gemma3.attention.key_length_swa": 16}, "key_length_swa"),  # local heads of another size
        ({"gemma3.attention.sliding_window_pattern": [True]}, "has 1 entries for 7 layers"),
    ],
)
def test_gguf_files_whose_kv_cannot_be_counted(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", GEMMA3, random_weights(GEMMA3, 0), metadata=change)
    with pytest.raises(ModelLoadError, match=f"{path}.*{says}"):
        kv_model(str(path))


def test_a_gguf_file_of_a_family_that_is_not_run(tmp_path: Path) -> None:
    entries = {
        "cohere2.block_count": 8,
        "cohere2.attention.head_count": 4,
        "cohere2.attention.key_length": 64,
    }
    entries |= {"cohere2.attention.head_count_kv": 1, "cohere2.attention.sliding_window": 256}
    path = write_gguf(
        tmp_path / "m.gguf", SPEC, random_weights(SPEC, 0), metadata=entries, architecture="cohere2"
    )
    model = kv_model(str(path))
    assert [layer.window for layer in model.layers] == [256, 256, 256, 0] * 2
    assert any("one layer in 4" in text for text in model.assumptions)


def test_a_gguf_file_with_a_state_is_refused(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", SPEC, random_weights(SPEC, 0), metadata={"plamo2.ssm.state_size": 16}, architecture="plamo2"
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match=r"plamo2\.ssm\.state_size"):
        kv_model(str(path))


def test_our_own_config_is_read_as_the_engine_reads_it(tmp_path: Path) -> None:
    from duologue.models.duologue_config import duologue_config

    path = tmp_path / "config.json"
    path.write_text(json.dumps(duologue_config(preset("15m"))))
    assert kv_model(str(path)).layers == KvModel.of_spec("m", preset("15m")).layers
    assert kv_model(str(tmp_path)).name == tmp_path.name


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not a JSON object"),
        ("{}", "num_hidden_layers is missing"),
    ],
)
def test_configs_that_cannot_be_used(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ModelLoadError, match=says):
        kv_model(str(path))
