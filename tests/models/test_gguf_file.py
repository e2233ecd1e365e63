"""Damaged files: whatever the bytes, the reader gives a checkpoint or one clear error, at once."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duologue.errors import ModelLoadError
from duologue.models.gguf_checkpoint import read_gguf
from duologue.models.gguf_file import read_gguf_file
from duologue.models.random_model import random_spec, random_weights
from tests.models.gguf_case import write_gguf

SPEC = random_spec(hidden=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp=16, vocab=8)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    content = write_gguf(path, SPEC, random_weights(SPEC, 0)).read_bytes()
    read_gguf(path)
    return content


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "damaged.gguf"


def expect(path: Path, content: bytes, named: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=named) as raised:
        read_gguf_file(path)
    message = str(raised.value)
    assert str(path) in message
    assert "fetch it again" in message
    assert "\n" not in message


def test_not_a_gguf_file(damaged: Path) -> None:
    expect(damaged, b"", "empty")
    expect(damaged, b"GG", "does not begin with 'GGUF'")
    expect(damaged, b"PK\x03\x04 and so on", "does not begin with 'GGUF'")


def test_versions(damaged: Path, sound: bytes) -> None:
    expect(damaged, sound[:4] + struct.pack("<I", 1) + sound[8:], "its version is 1")
    expect(damaged, sound[:4] + struct.pack(">I", 3) + sound[8:], "big-endian")


def test_every_truncation_is_an_error(damaged: Path, sound: bytes) -> None:
    for size in [*range(1, len(sound), 61), len(sound) - 1]:
        damaged.write_bytes(sound[:size])
        with pytest.raises(ModelLoadError):
            read_gguf_file(damaged)


def test_a_truncated_tensor_is_named_with_its_extent(damaged: Path, sound: bytes) -> None:
    expect(damaged, sound[:-64], r"it is truncated: tensor \S+ ends at byte [\d,]+ of [\d,]+")


def test_huge_lengths_are_refused_at_once(damaged: Path, sound: bytes) -> None:
    expect(damaged, sound[:8] + struct.pack("<Q", 2**62) + sound[16:], "tensor")
    expect(damaged, sound[:16] + struct.pack("<Q", 2**62) + sound[24:], "ends inside")
    expect(damaged, sound[:24] + struct.pack("<Q", 2**63) + sound[32:], "ends inside")
    at = sound.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    expect(damaged, sound[:at] + struct.pack("<Q", 2**40) + sound[at + 8 :], "tokenizer.ggml.tokens")
    at = sound.index(b"tokenizer.ggml.scores") + len(b"tokenizer.ggml.scores") + 8
    expect(damaged, sound[:at] + struct.pack("<Q", 2**61) + sound[at + 8 :], "tokenizer.ggml.scores")


def test_unknown_types_are_named(damaged: Path, sound: bytes) -> None:
    at = sound.index(b"general.name") + len(b"general.name")
    expect(
        damaged, sound[:at] + struct.pack("<I", 77) + sound[at + 4 :], "general.name has the unknown type 77"
    )


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="check the path"):
        read_gguf_file(tmp_path / "no.gguf")


@settings(max_examples=200, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_give_a_checkpoint_or_a_clear_error(
    damaged: Path, sound: bytes, data: st.DataObject
) -> None:
    content = bytearray(sound)
    header_bytes = sound.index(b"output_norm") + 200
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, min(header_bytes, len(sound)) - 1))] = data.draw(st.integers(0, 255))
    damaged.write_bytes(content)
    message, finite = str(damaged), True
    try:
        checkpoint = read_gguf(damaged)
        finite = all(np.isfinite(values).all() for values in checkpoint.weights.values())
    except ModelLoadError as error:
        message = str(error)
    assert str(damaged) in message
    assert finite


def test_arrays_of_arrays_are_refused_however_deep(damaged: Path) -> None:
    key = struct.pack("<Q", 1) + b"a"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<I", 9)
    expect(damaged, header + struct.pack("<IQ", 9, 1) * 100_000, "metadata entry a is an array of arrays")
    expect(damaged, header + struct.pack("<IQ", 77, 1), "metadata entry a is an array of the unknown type 77")
