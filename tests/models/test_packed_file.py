from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors

from duologue.errors import ModelLoadError
from duologue.models.pack import pack_model
from duologue.models.packed_file import read_packed, write_packed
from duologue.models.packed_model import PackedModel
from duologue.models.random_model import random_spec, random_weights

SPEC = random_spec(layers=3, windows=[0, 8, 8], kv_owners=[None, None, 1], context_tokens=63)
MODEL = PackedModel("tiny", SPEC, pack_model(SPEC, random_weights(SPEC, 1)), b"tokenizer \xff", "{{ 'é' }}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_packed(tmp_path / "m.safetensors", MODEL, "key")
    return tmp_path / "m.safetensors"


def test_what_is_written_is_read_back(path: Path) -> None:
    model = read_packed(path, "key")
    assert (model.name, model.spec, model.tokenizer) == (MODEL.name, MODEL.spec, MODEL.tokenizer)
    assert model.chat_template == MODEL.chat_template
    assert model.key == "key"
    assert model.weight_bytes == MODEL.weight_bytes
    assert model.arrays.keys() == MODEL.arrays.keys()
    for name, array in MODEL.arrays.items():
        assert model.arrays[name].dtype == array.dtype
        assert np.array_equal(model.arrays[name], array), name
    model.native()


def test_arrays_are_views_on_cache_lines(path: Path) -> None:
    for name, array in read_packed(path, "key").arrays.items():
        assert array.ctypes.data % 64 == 0, name
        assert array.base is not None


def test_arrays_outlive_the_model_they_came_with(path: Path) -> None:
    array = read_packed(path, "key").arrays["layers.0.qkv.codes"]
    assert np.array_equal(array, MODEL.arrays["layers.0.qkv.codes"])


def test_a_model_without_a_template(tmp_path: Path) -> None:
    write_packed(tmp_path / "m", PackedModel("m", SPEC, MODEL.arrays, b""), "key")
    model = read_packed(tmp_path / "m", "key")
    assert model.chat_template is None
    assert model.tokenizer == b""


def test_the_safetensors_package_reads_the_file(path: Path) -> None:
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata()["name"] == "tiny"
        for name, array in MODEL.arrays.items():
            assert np.array_equal(file.get_tensor(name), array), name


def test_no_truncation_or_growth_is_trusted(path: Path) -> None:
    content = path.read_bytes()
    for size in [*range(0, len(content), 997), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(ModelLoadError, match="is damaged"):
            read_packed(path, "key")
    path.write_bytes(content + bytes(64))
    with pytest.raises(ModelLoadError, match="is damaged"):
        read_packed(path, "key")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"vocab_size\\":320', b'"vocab_size\\":321'),
        (b'"heads\\":4', b'"heads\\":8'),
        (b'"I8"', b'"U8"'),
        (b'"F32"', b'"I32"'),
        (b'"norm_eps', b'"norm_epz'),
        (b"layers.1.qkv.codes", b"layers.9.qkv.codes"),
        (b'"tokenizer_bytes":"1', b'"tokenizer_bytes":"x'),
        (b'"tokenizer_bytes":"1', b'"tokenizer_bytes":"-'),
        (b'{"', b'["'),
    ],
)
def test_a_header_that_does_not_fit_is_not_trusted(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content[:20000]
    path.write_bytes(content.replace(old, new, 1))
    with pytest.raises(ModelLoadError, match="is damaged"):
        read_packed(path, "key")


def test_a_damaged_tokenizer_is_not_trusted(path: Path) -> None:
    content = path.read_bytes()
    assert content.count(MODEL.tokenizer) == 1
    path.write_bytes(content.replace(MODEL.tokenizer, b"tokenizer \xfe"))
    with pytest.raises(ModelLoadError, match="is damaged: the checksum of its tokenizer is wrong"):
        read_packed(path, "key")


def test_another_key_is_refused(path: Path) -> None:
    with pytest.raises(ModelLoadError, match="its key is key, not other"):
        read_packed(path, "other")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_packed(tmp_path / "no", "key")
