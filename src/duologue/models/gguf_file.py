"""A GGUF file's key-value pairs and tensor directory, read without trusting a single length in it.

The `gguf` package's own reader builds several numpy arrays for each string (seconds for a vocabulary) and,
given a damaged length, loops over it or returns empty arrays. Here every extent is checked against the
file's size before anything is allocated. Tensor data stays in the memory-mapped file; `gguf.quants` turns it
into floats.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from duologue.errors import ModelLoadError, UnsupportedModelError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)  # they differ only in that 3 also allows big-endian files
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class GgufTensor:
    """`shape` is in numpy's order (rows first); `data` is the raw bytes, a view into the mapped file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: npt.NDArray[np.uint8]

    def floats(self) -> npt.NDArray[np.float32]:
        """The dequantised values, a new array of `shape`.

        Raises UnsupportedModelError when the `gguf` package cannot dequantise this kind.
        """
        return self._dequantised(self.data.reshape(*self.shape[:-1], -1)).reshape(self.shape)

    def check_kind(self) -> None:
        """Raises as `floats`, from one row."""
        rows = self.data.reshape(-1, self.data.size // max(1, math.prod(self.shape[:-1])))
        self._dequantised(rows[:1])

    def _dequantised(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        try:
            values = quants.dequantize(rows, self.kind)
        except NotImplementedError:
            raise UnsupportedModelError(
                f"tensor {self.name} is stored as {self.kind.name}, which cannot be dequantised; "
                "use a file with another quantisation, such as Q8_0 or Q4_K"
            ) from None
        if np.may_share_memory(values, self.data):  # float32 is not converted
            values = values.copy()
        return values.astype(np.float32, copy=False)


@dataclass(frozen=True)
class GgufFile:
    """Key-value pairs as plain Python values (arrays as lists), tensors by name."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf_file(path: Path) -> GgufFile:
    """Reads the header, maps the tensors. Raises ModelLoadError naming the file and what is wrong with it."""
    try:
        if path.stat().st_size == 0:
            raise _DamagedError("it is empty")
        # A plain array: every slice of a memmap object costs microseconds, and dequantising makes many.
        data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        return _parse(data)
    except OSError as error:
        raise ModelLoadError(
            f"{path} cannot be read ({error.strerror}); check the path and its permissions"
        ) from error
    except _DamagedError as error:
        raise ModelLoadError(f"{path} is not a usable GGUF file: {error}; fetch it again") from None


class _DamagedError(Exception):
    pass


class _Cursor:
    """Reads little-endian values one after the other; `_DamagedError` where the file ends too early."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.data = memoryview(data)  # type: ignore[arg-type]
        self.at = 0

    def take(self, count: int, what: str) -> memoryview:
        if count > len(self.data) - self.at:
            raise _DamagedError(f"it ends inside {what} (truncated, or a length in it is damaged)")
        self.at += count
        return self.data[self.at - count : self.at]

    def scalar(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def string(self, what: str) -> str:
        raw = self.take(self.scalar("Q", what), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            raise _DamagedError(f"{what} is not UTF-8") from None

    def value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what)
        if kind not in _SCALARS:
            raise _DamagedError(f"{what} has the unknown type {kind}")
        return self.scalar(_SCALARS[kind], what)

    def _array(self, what: str) -> list[Any]:
        kind, count = self.scalar("I", what), self.scalar("Q", what)
        if kind in _SCALARS:
            code = _SCALARS[kind]
            raw = self.take(count * struct.calcsize("<" + code), what)
            return list(struct.unpack(f"<{count}{code}", raw))
        if kind == _ARRAY:  # the format allows it, no model has it, and a damaged file would nest without end
            raise _DamagedError(f"{what} is an array of arrays, which is not supported")
        if kind != _STRING:
            raise _DamagedError(f"{what} is an array of the unknown type {kind}")
        if count * 8 > len(self.data) - self.at:  # each string has a length
            raise _DamagedError(f"it ends inside {what} (truncated, or a length in it is damaged)")
        return [self.string(what) for _ in range(count)]


def _parse(data: npt.NDArray[np.uint8]) -> GgufFile:
    cursor = _Cursor(data)
    if bytes(cursor.take(min(4, len(data)), "the header")) != MAGIC:
        raise _DamagedError("it does not begin with 'GGUF'")
    version = cursor.scalar("I", "the header")
    if version & 0xFFFF == 0:
        raise _DamagedError("it is in big-endian byte order, which is not supported")
    if version not in _VERSIONS:
        raise _DamagedError(
            f"its version is {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} are supported"
        )
    tensor_count, pair_count = cursor.scalar("Q", "the header"), cursor.scalar("Q", "the header")

    metadata: dict[str, Any] = {}
    for i in range(pair_count):
        key = cursor.string(f"the name of metadata entry {i}")
        if key in metadata:
            raise _DamagedError(f"metadata entry {key} occurs twice")
        kind = cursor.scalar("I", f"metadata entry {key}")
        metadata[key] = cursor.value(kind, f"metadata entry {key}")

    directory = []
    for i in range(tensor_count):
        name = cursor.string(f"the name of tensor {i}")
        what = f"the description of tensor {name}"
        dimensions = cursor.scalar("I", what)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise _DamagedError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed([cursor.scalar("Q", what) for _ in range(dimensions)]))
        directory.append((name, shape, cursor.scalar("I", what), cursor.scalar("Q", what)))

    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _DamagedError(f"general.alignment is {alignment!r}, not a power of two")
    start = (cursor.at + alignment - 1) // alignment * alignment

    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in directory:
        if name in tensors:
            raise _DamagedError(f"tensor {name} occurs twice")
        tensors[name] = _tensor(data, name, shape, kind, start + offset)
    return GgufFile(metadata, tensors)


def _tensor(
    data: npt.NDArray[np.uint8], name: str, shape: tuple[int, ...], kind: int, begin: int
) -> GgufTensor:
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError:
        raise _DamagedError(f"tensor {name} has the unknown type {kind}") from None
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    if shape[-1] % block:
        raise _DamagedError(
            f"tensor {name} has rows of {shape[-1]}, not a multiple of {quantization.name}'s {block}"
        )
    size_bytes = block_bytes
    for extent in (*shape[:-1], shape[-1] // block):
        size_bytes *= extent
    if size_bytes == 0:
        raise _DamagedError(f"tensor {name} is empty")
    if begin + size_bytes > len(data):
        raise _DamagedError(
            f"it is truncated: tensor {name} ends at byte {begin + size_bytes:,} of {len(data):,}"
        )
    return GgufTensor(name, shape, quantization, data[begin : begin + size_bytes])
