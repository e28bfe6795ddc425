"""The head of a GGUF file: its metadata without long arrays, and how large its tensors are. Nothing is loaded; the
engine's reader is not needed (versions 2 and 3, little-endian)."""

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .shape import FULL, STATE, WINDOW, LayerGroup, ModelShape, SizingError, grouped

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEPT_ITEMS = 1024  # of an array; a vocabulary is of no use here
_MAX_PAIRS = 1 << 20
_MAX_DIMS = 8


def read_header(path: Path) -> tuple[Mapping[str, Any], int]:
    """(the metadata, elements of all tensors of the file). SizingError for what is no GGUF file, or a damaged one."""
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise SizingError(f"{path} is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(data, path)
    except OSError as error:
        raise SizingError(f"{path} cannot be read: {error.strerror}") from None
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise SizingError(f"{path} is damaged or truncated: {error}") from None


def shape_of_gguf(path: Path) -> ModelShape:
    """SizingError when the metadata does not say what KV needs."""
    (meta, elements), parts, name = read_header(path), parts_of(path), path.stem
    family = str(meta.get("general.architecture") or "")

    def get(key: str, default: Any = None) -> Any:
        return meta.get(f"{family}.{key}", default)

    layers, heads = get("block_count"), get("attention.head_count")
    if not isinstance(layers, int) or not heads:
        raise SizingError(f"{path}: the metadata of {family or 'an unnamed architecture'} names no layers or heads")
    counts = _per_layer(get("attention.head_count_kv", heads), layers)
    most = max(_per_layer(heads, layers))
    key_dim = int(get("attention.key_length") or (get("embedding_length") or 0) // max(most, 1))
    value_dim = int(get("attention.value_length") or key_dim)
    latent = int(get("attention.kv_lora_rank") or 0)
    if latent:
        key_dim, value_dim, counts = latent + int(get("rope.dimension_count") or 0), 0, [1] * layers
    if not key_dim:
        raise SizingError(f"{path}: the metadata names neither {family}.attention.key_length nor embedding_length")
    window = int(get("attention.sliding_window") or 0)
    windowed = _windowed(get("attention.sliding_window_pattern"), layers, window)
    each = [
        LayerGroup(WINDOW if far else FULL, 1, count, key_dim, value_dim, window if far else 0)
        if count
        else LayerGroup(STATE, 1)
        for count, far in zip(counts, windowed, strict=True)
    ]
    notes = [
        "weights as in the file; --dtype for an engine that unpacks them (the bundled one does), --kv-dtype for its KV"
    ]
    if any(windowed):
        notes.append(f"{sum(windowed)} of {layers} layers see a window of {window:,} tokens")
    if get("ssm.state_size"):
        notes.append("some layers keep a state, not KV: a prefix's KV without that state must not be reused")
    return ModelShape(
        name=name,
        family=family,
        groups=grouped(each),
        max_context=int(get("context_length") or 0),
        parameters=elements if len(parts) == 1 else 0,
        weights_bytes=sum(part.stat().st_size for part in parts),
        notes=tuple(notes),
    )


def parts_of(path: Path) -> list[Path]:
    """All files of a model that was split ("-00001-of-00003"), or the one."""
    stem, _, rest = path.stem.rpartition("-of-")
    if stem and rest.isdecimal() and stem[-5:].isdecimal():
        return sorted(path.parent.glob(f"{stem[:-5]}*-of-{rest}.gguf")) or [path]
    return [path]


def _windowed(pattern: Any, layers: int, window: int) -> list[bool]:
    if not window:
        return [False] * layers
    if isinstance(pattern, list):
        return [bool(pattern[layer % len(pattern)]) for layer in range(layers)]  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(pattern, int) and pattern > 1:
        return [(layer + 1) % pattern != 0 for layer in range(layers)]
    return [True] * layers


def _per_layer(said: Any, layers: int) -> list[int]:
    """One number for all layers, or a list of them."""
    if isinstance(said, list):
        numbers = [int(each) for each in said]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if len(numbers) != layers:
            raise ValueError(f"{len(numbers)} head counts for {layers} layers")
        return numbers
    return [int(said)] * layers


def _parse(data: mmap.mmap, path: Path) -> tuple[dict[str, Any], int]:
    version, tensors, pairs = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        raise SizingError(f"{path} is of GGUF version {version}; versions 2 and 3 are read")
    if pairs > _MAX_PAIRS or tensors > _MAX_PAIRS:
        raise IndexError(f"{pairs} metadata entries, {tensors} tensors")
    at, found = 24, dict[str, Any]()
    for _ in range(pairs):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        found[key], at = _value(data, at + 4, kind)
    elements = 0
    for _ in range(tensors):
        at = _string_end(data, at)
        (dims,) = struct.unpack_from("<I", data, at)
        if dims > _MAX_DIMS:
            raise IndexError(f"a tensor of {dims} dimensions")
        elements += math.prod(struct.unpack_from(f"<{dims}Q", data, at + 4))
        at += 4 + 8 * dims + 12  # dimensions, type, offset
    return found, elements


def _string(data: mmap.mmap, at: int) -> tuple[str, int]:
    end = _string_end(data, at)
    return data[at + 8 : end].decode("utf-8"), end


def _string_end(data: mmap.mmap, at: int) -> int:
    (length,) = struct.unpack_from("<Q", data, at)
    end = at + 8 + length
    if end > len(data):
        raise IndexError("a text ends beyond the file")
    return end


def _value(data: mmap.mmap, at: int, kind: int) -> tuple[Any, int]:
    if kind == _STRING:
        return _string(data, at)
    if kind == _ARRAY:
        return _array(data, at)
    code = "<" + _code(kind)
    return struct.unpack_from(code, data, at)[0], at + struct.calcsize(code)


def _array(data: mmap.mmap, at: int) -> tuple[Any, int]:
    """A short one of numbers is kept, others are None."""
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if count > len(data):  # an element takes a byte or more
        raise IndexError("an array ends beyond the file")
    if kind == _STRING:
        for _ in range(count):
            at = _string_end(data, at)
        return None, at
    if kind == _ARRAY:
        raise ValueError("an array of arrays")
    form = f"<{count}{_code(kind)}"
    end = at + struct.calcsize(form)
    if end > len(data):
        raise IndexError("an array ends beyond the file")
    return (list(struct.unpack_from(form, data, at)) if count <= _KEPT_ITEMS else None), end


def _code(kind: int) -> str:
    if kind not in _FORMATS:
        raise ValueError(f"a value of the unknown type {kind}")
    return _FORMATS[kind]
