"""Weights in several files, and what may be wrong with them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.hf_checkpoint import read_hf_folder, source_files
from duologue.models.hf_weights import INDEX_FILE, WEIGHTS_FILE
from duologue.models.random_model import random_spec, random_weights, write_random_llama
from duologue.models.source import resolve
from tests.models.shards import cut_into_shards

SHAPE = {"kv_heads": 2, "layers": 2}
FIRST = "model-00001-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_random_llama(tmp_path / "tiny", seed=5, **SHAPE)


@pytest.fixture
def sharded(folder: Path) -> Path:
    cut_into_shards(folder)
    return folder


def change_index(folder: Path, **moved: Any) -> None:
    """Says of tensors, named with _ for a dot, that they are in other files."""
    path = folder / INDEX_FILE
    index = json.loads(path.read_text())
    index["weight_map"] |= {name.replace("__", "."): file for name, file in moved.items()}
    path.write_text(json.dumps(index))


def test_shards_give_the_weights_of_one_file(sharded: Path) -> None:
    checkpoint = read_hf_folder(sharded)
    for name, values in random_weights(random_spec(**SHAPE), 5).items():
        assert np.array_equal(checkpoint.weights[name], values), name


def test_one_file_goes_before_an_index(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    cut_into_shards(other)
    (folder / INDEX_FILE).write_text("{}")
    assert len(read_hf_folder(folder).weights) == len(read_hf_folder(other).weights)


def test_every_shard_is_in_the_digest(sharded: Path) -> None:
    assert [path.name for path in source_files(sharded)][:5] == [
        "config.json",
        INDEX_FILE,
        *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
    ]
    digest = resolve(sharded).digest()
    path = sharded / FIRST
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert resolve(sharded).digest() != digest


def test_a_missing_or_damaged_shard_is_named(sharded: Path) -> None:
    path = sharded / FIRST
    sound = path.read_bytes()
    path.write_bytes(sound[:-8])
    with pytest.raises(ModelLoadError, match=rf"{FIRST}: it should have .* \(truncated or damaged\)"):
        read_hf_folder(sharded)
    path.unlink()
    with pytest.raises(ModelLoadError, match=rf"{FIRST} is missing \(2 of the 3 files"):
        read_hf_folder(sharded)


def test_a_shard_that_lacks_what_the_index_says(sharded: Path) -> None:
    change_index(sharded, model__norm__weight=FIRST)
    with pytest.raises(
        ModelLoadError, match=rf"tensor model\.norm\.weight is in {FIRST}, but it is not there"
    ):
        read_hf_folder(sharded)


@pytest.mark.parametrize(
    "name",
    ["../model.safetensors", "/etc/passwd", "sub/x.safetensors", "..\\x.safetensors", "..", "", 7, None],
)
def test_an_index_names_files_beside_it_alone(sharded: Path, name: Any) -> None:
    (sharded.parent / WEIGHTS_FILE).write_bytes(b"")
    change_index(sharded, model__norm__weight=name)
    with pytest.raises(
        ModelLoadError, match=re.escape(f"is in {name!r}, which is no name of a file in this folder")
    ):
        read_hf_folder(sharded)
    assert INDEX_FILE in [path.name for path in source_files(sharded)]  # and nothing of it is opened
    assert not any("00001" in path.name for path in source_files(sharded))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
    ],
)
def test_an_index_that_is_none(sharded: Path, content: str, named: str) -> None:
    (sharded / INDEX_FILE).write_text(content)
    with pytest.raises(ModelLoadError, match=rf"{re.escape(INDEX_FILE)} {named}"):
        read_hf_folder(sharded)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_pickle_is_refused_by_its_name(sharded: Path, indexed: bool) -> None:
    if indexed:
        change_index(sharded, model__norm__weight="pytorch_model.bin")
    else:
        (sharded / INDEX_FILE).unlink()
        (sharded / "pytorch_model.bin").write_bytes(b"never opened")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin"):
        read_hf_folder(sharded)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(ModelLoadError, match=rf"{WEIGHTS_FILE} is missing, and so is"):
        read_hf_folder(folder)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(folder: Path) -> None:
    weights = read_hf_folder(folder).weights
    path = folder / WEIGHTS_FILE
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="model"):
        dict(weights)
    path.unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read"):
        dict(weights)
