"""The safetensors format: an 8-byte length, a JSON header and the bytes of the tensors.

Read and written here because the `safetensors` package needs torch or ml_dtypes for bfloat16, copies what it
loads and saves, and aligns to 8 bytes where weights that are used in place want a cache line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from duologue.errors import ModelLoadError, UnsupportedModelError

ALIGNMENT_BYTES = 64
FLOAT_DTYPES = ("F32", "F16", "BF16")
"""Those that `read_floats` reads."""

Tensor = tuple[str, tuple[int, ...], npt.NDArray[Any]]

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20  # the format's own bound
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class TensorEntry:
    """`begin`, `end`: bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """`size_bytes` is the file's size, which the last tensor ends at."""

    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    size_bytes: int


def read_header(path: Path) -> SafetensorsHeader:
    """Parses and checks the header against the file's size.

    Raises ModelLoadError, without naming the file, when the two contradict each other; OSError when it
    cannot be read.
    """
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = file.read(_LENGTH_BYTES)
        return parse_header(length + file.read(header_bytes(length, size_bytes)), size_bytes)


def header_bytes(start: bytes, size_bytes: int) -> int:
    """Length of the JSON part, from a file's first 8 bytes. Raises ModelLoadError as `read_header`."""
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    if length > _MAX_HEADER_BYTES or _LENGTH_BYTES + length > size_bytes:
        raise ModelLoadError("its header is longer than the file (truncated, or not a safetensors file)")
    return length


def parse_header(start: bytes | memoryview, size_bytes: int) -> SafetensorsHeader:
    """The header of a file of `size_bytes` whose first bytes, all of the header at least, are `start`.

    Raises ModelLoadError as `read_header`.
    """
    data_begin = _LENGTH_BYTES + header_bytes(bytes(start[:_LENGTH_BYTES]), size_bytes)
    try:
        described = json.loads(bytes(start[_LENGTH_BYTES:data_begin]))
        metadata = {str(key): str(value) for key, value in described.pop("__metadata__", {}).items()}
        tensors = {name: _entry(name, entry, data_begin) for name, entry in described.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelLoadError(f"its header is damaged or not that of a safetensors file ({error})") from error
    end = data_begin
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            raise ModelLoadError(f"its header is damaged (tensor {name} leaves a gap or overlaps)")
        end = entry.end
    if end != size_bytes:
        raise ModelLoadError(f"it should have {end:,} bytes but has {size_bytes:,} (truncated or damaged)")
    return SafetensorsHeader(tensors, metadata, size_bytes)


def _entry(name: str, described: Any, start: int) -> TensorEntry:
    dtype, shape = str(described["dtype"]), tuple(int(n) for n in described["shape"])
    begin, end = (int(offset) for offset in described["data_offsets"])
    if dtype not in _ITEM_BYTES or any(n < 0 for n in shape) or begin < 0:
        raise ValueError(f"tensor {name} has dtype {dtype}, shape {list(shape)}")
    if end - begin != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise ValueError(f"tensor {name} has {end - begin} bytes for {dtype} {list(shape)}")
    return TensorEntry(dtype, shape, start + begin, start + end)


def write_safetensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Writes tensors given as (dtype by its safetensors name, shape, data).

    The header is padded with spaces, which the format allows, so that the data begin at a multiple of 64
    bytes; tensors of a multiple of 64 bytes are then all aligned.
    """
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        described[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [offset, offset + data.nbytes],
        }
        offset += data.nbytes
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-(_LENGTH_BYTES + len(header)) % ALIGNMENT_BYTES)
    file.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
    file.write(header)
    for _, _, data in tensors.values():
        file.write(np.ascontiguousarray(data).data)


def read_floats(path: Path, name: str, entry: TensorEntry) -> npt.NDArray[np.float32]:
    """A tensor's values as float32. Raises UnsupportedModelError unless the dtype is one of FLOAT_DTYPES, ModelLoadError
    where the file ends too early, and OSError."""
    stored = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(entry.dtype)
    if stored is not None:
        values = np.fromfile(path, stored, math.prod(entry.shape), offset=entry.begin).reshape(-1)
        if len(values) != math.prod(entry.shape):
            raise ModelLoadError(
                f"{path.name} ends inside tensor {name} (it has changed since it was opened)"
            )
        if entry.dtype == "BF16":
            bits = values.astype(np.uint32)
            bits <<= np.uint32(16)
            return bits.view(np.float32).reshape(entry.shape)
        return values.astype(np.float32, copy=False).reshape(entry.shape)
    raise UnsupportedModelError(
        f"tensor {name} is stored as {entry.dtype}; supported are {', '.join(FLOAT_DTYPES)}"
    )
