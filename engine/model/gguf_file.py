"""GgufFile: metadata and tensors of one GGUF file (versions 2 and 3, little-endian), read through a memory map.

The metadata is parsed here and not by the gguf package, whose reader takes 5 s for a vocabulary of 50,000 (an array
object per string); this takes 0.2 s. Dequantisation is the package's.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from .errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape is row-major (GGUF lists it the other way round); start and size are bytes in the file."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    start: int
    size: int


class GgufFile:
    """Raises ModelError for what is not a whole GGUF file; tensors are bounds-checked here, once."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path.name} is not a GGUF file")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.metadata, self.tensors = _parse(self._map)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise ModelError(f"{path.name} is damaged or truncated: {error}") from None
        for name, tensor in self.tensors.items():
            if tensor.start + tensor.size > len(self._map):
                raise ModelError(f"{path.name} is truncated: tensor {name} ends beyond the file")

    def raw(self, name: str) -> memoryview:
        """The bytes of a tensor as they are in the file."""
        tensor = self.tensors[name]
        return memoryview(self._map)[tensor.start : tensor.start + tensor.size]

    def read(self, name: str) -> NDArray[np.float32]:
        """The dequantised tensor. May share the file's read-only memory."""
        tensor = self.tensors[name]
        block, size = GGML_QUANT_SIZES[tensor.kind]
        rows = (*tensor.shape[:-1], tensor.shape[-1] // block * size)
        data = np.frombuffer(self.raw(name), dtype=np.uint8).reshape(rows)
        try:
            return dequantize(data, tensor.kind)
        except NotImplementedError:
            raise ModelError(f"tensor {name}: GGUF type {tensor.kind.name} cannot be dequantised") from None


def _parse(data: mmap.mmap) -> tuple[Mapping[str, Any], dict[str, GgufTensor]]:
    version, tensor_count, pair_count = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise ModelError(f"GGUF version {version} is not supported; supported: 2 and 3, little-endian")
    at, metadata = 24, {}
    for _ in range(pair_count):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = _value(data, at + 4, kind)
    found: list[tuple[str, GGMLQuantizationType, tuple[int, ...], int]] = []
    for _ in range(tensor_count):
        name, at = _string(data, at)
        (dims,) = struct.unpack_from("<I", data, at)
        *shape, kind, offset = struct.unpack_from(f"<{dims}QIQ", data, at + 4)
        at += 4 + 8 * dims + 12
        try:
            found.append((name, GGMLQuantizationType(kind), tuple(reversed(shape)), offset))
        except ValueError:
            raise ModelError(f"tensor {name} has the unknown GGUF type {kind}") from None
    alignment = metadata.get("general.alignment", 32)
    base = -(-at // alignment) * alignment
    return metadata, {
        name: GgufTensor(kind, shape, base + offset, _byte_size(kind, shape)) for name, kind, shape, offset in found
    }


def _byte_size(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    return int(np.prod(shape, dtype=np.int64)) // block * size


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise IndexError("a string ends beyond the file")
    return data[at + 8 : end].decode("utf-8"), end


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind != _ARRAY:
        code = _scalar(kind)
        return struct.unpack_from("<" + code, data, at)[0], at + struct.calcsize("<" + code)
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if count > len(data):  # an element takes a byte or more
        raise IndexError("an array ends beyond the file")
    if inner in (_STRING, _ARRAY):
        values: list[Any] = []
        for _ in range(count):
            value, at = _value(data, at, inner)
            values.append(value)
        return values, at
    form = f"<{count}{_scalar(inner)}"
    return list(struct.unpack_from(form, data, at)), at + struct.calcsize(form)


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ModelError(f"GGUF metadata holds the unknown value type {kind}")
    return _SCALARS[kind]
