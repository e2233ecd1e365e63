"""The packed cache: one safetensors file that is read once, whole, into huge pages and used in place.

Arrays are views into that buffer. Every array is a multiple of 64 bytes and the header is padded to one, so
each begins on a cache line. Memory-mapping the file instead would save the copy but leave the weights on 4
KiB pages. The arrays have no checksum: a file that was cut short or overwritten is told by its header, its
size or its spec, which costs nothing at start; it is then packed anew. The tokenizer has one, because a start
would fail on a damaged one every time.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from duologue.errors import DuologueError, ModelLoadError
from duologue.kernels import _native
from duologue.models.packed_model import PackedModel
from duologue.models.safetensors_file import (
    ALIGNMENT_BYTES,
    SafetensorsHeader,
    parse_header,
    write_safetensors,
)
from duologue.models.spec import ModelSpec
from duologue.models.store import write_atomically

_TOKENIZER = "tokenizer"
_DTYPE_NAMES = {"int8": "I8", "uint8": "U8", "int32": "I32", "float32": "F32"}
_DTYPES = {name: np.dtype(dtype) for dtype, name in _DTYPE_NAMES.items()}


def write_packed(path: Path, model: PackedModel, key: str, *, versions: str = "") -> None:
    """Writes the model for `read_packed` with the same key, and what of the key is not its source's. Raises OSError; then there
    is no file or the old one."""
    tokenizer = np.zeros(_aligned(len(model.tokenizer)), np.uint8)
    tokenizer[: len(model.tokenizer)] = np.frombuffer(model.tokenizer, np.uint8)
    arrays = {**model.arrays, _TOKENIZER: tokenizer}
    for name, array in arrays.items():
        if array.nbytes % ALIGNMENT_BYTES:
            raise ValueError(f"array {name} has {array.nbytes} bytes, not a multiple of {ALIGNMENT_BYTES}")
    metadata = {
        "key": key,
        "versions": versions,
        "name": model.name,
        "spec": model.spec.to_json(),
        "chat_template": json.dumps(model.chat_template),
        "tokenizer_bytes": str(len(model.tokenizer)),
        "tokenizer_crc32": _checksum(model.tokenizer),
    }
    tensors = {name: (_DTYPE_NAMES[array.dtype.name], array.shape, array) for name, array in arrays.items()}
    write_atomically(path, lambda file: write_safetensors(file, tensors, metadata))


def read_packed(path: Path, key: str) -> PackedModel:
    """The model that `write_packed` put at `path`.

    Raises ModelLoadError when there is no usable file (missing, damaged, of another key): pack the model
    anew.
    """
    try:
        size_bytes = path.stat().st_size
        buffer = _native.HugeBuffer(max(size_bytes, 8))
        buffer.read_file(str(path), size_bytes)
    except (OSError, RuntimeError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    data: npt.NDArray[np.uint8] = buffer.array()
    try:
        return _model(parse_header(data.data, size_bytes), data, key)
    except (DuologueError, KeyError, ValueError, TypeError) as error:
        raise ModelLoadError(f"{path} is damaged: {error}") from error


def _model(header: SafetensorsHeader, data: npt.NDArray[np.uint8], key: str) -> PackedModel:
    metadata = header.metadata
    if metadata["key"] != key:
        raise ModelLoadError(f"its key is {metadata['key']}, not {key}")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, entry in header.tensors.items():
        if entry.begin % ALIGNMENT_BYTES:
            raise ModelLoadError(f"array {name} begins at byte {entry.begin}")
        if entry.dtype != _expected_dtype(name):
            raise ModelLoadError(f"array {name} is {entry.dtype}")
        arrays[name] = data[entry.begin : entry.end].view(_DTYPES[entry.dtype]).reshape(entry.shape)
    tokenizer = arrays.pop(_TOKENIZER)[: int(metadata["tokenizer_bytes"])].tobytes()
    # Files of the first versions do not say.
    if metadata.get("tokenizer_crc32", _checksum(tokenizer)) != _checksum(tokenizer):
        raise ModelLoadError("the checksum of its tokenizer is wrong")
    model = PackedModel(
        name=metadata["name"],
        spec=ModelSpec.from_json(metadata["spec"]),
        arrays=arrays,
        tokenizer=tokenizer,
        chat_template=json.loads(metadata["chat_template"]),
        key=key,
    )
    model.native()  # refuses arrays that do not fit the spec, in a millisecond
    return model


def _expected_dtype(name: str) -> str:
    if name == _TOKENIZER:
        return "U8"
    return {"codes": "I8", "compensation": "I32"}.get(name.rsplit(".", 1)[-1], "F32")


def _checksum(tokenizer: bytes) -> str:
    return f"{zlib.crc32(tokenizer):08x}"


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
