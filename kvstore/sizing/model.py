"""load_shape: from what the user named (folder, config.json, GGUF file) to a ModelShape."""

import dataclasses
import json
from pathlib import Path
from typing import Any, cast

from .gguf_header import shape_of_gguf
from .hf_config import shape_of
from .shape import ModelShape, SizingError

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def load_shape(where: Path) -> ModelShape:
    """SizingError says what is missing at `where`."""
    if not where.exists():
        raise SizingError(f"there is no {where}; name a model's folder, its config.json or a GGUF file")
    if where.is_dir():
        return _of_folder(where)
    return shape_of_gguf(where) if where.suffix == ".gguf" else _of_config(where, where.parent, weigh=False)


def _of_folder(folder: Path) -> ModelShape:
    config = folder / "config.json"
    if config.is_file():
        return _of_config(config, folder, weigh=True)
    files = sorted(folder.glob("*.gguf"))
    firsts = [file for file in files if "-of-" not in file.stem or "-00001-of-" in file.stem]
    if len(firsts) == 1:
        return shape_of_gguf(firsts[0])
    why = "several *.gguf files; name one" if firsts else "neither config.json nor a *.gguf file"
    raise SizingError(f"{folder} has {why}")


def _of_config(path: Path, folder: Path, *, weigh: bool) -> ModelShape:
    raw = _read_json(path)
    shape = shape_of(raw, folder.resolve().name if path.name == "config.json" else path.stem)
    return dataclasses.replace(shape, weights_bytes=_weights_bytes(folder)) if weigh else shape


def _weights_bytes(folder: Path) -> int:
    """Of the tensors, as the index says, else of the files; 0 = there are none."""
    for name in _INDEXES:
        if (folder / name).is_file():
            total: Any = cast("dict[str, Any]", _read_json(folder / name).get("metadata") or {}).get("total_size")
            if isinstance(total, int | float) and total > 0:
                return int(total)
    for pattern in ("*.safetensors", "pytorch_model*.bin"):
        files = [file for file in folder.glob(pattern) if file.is_file()]
        if files:
            return sum(file.stat().st_size for file in files)
    return 0


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found: object = json.loads(path.read_bytes())
    except OSError as error:
        raise SizingError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SizingError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SizingError(f"{path} holds no JSON object")
    return cast("dict[str, Any]", found)
