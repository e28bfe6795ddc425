"""Where tensors come from: a TensorSource gives them under their Hugging Face names, whatever the file format.

`content` is for the digest: every tensor of the files as stored, in an order that depends on the names only.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from .errors import ModelError
from .gguf_file import GgufFile

_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Frequency divisors of llama3 rope scaling; part of the configuration, not of a layer.
ROPE_FACTORS = "rope_freqs.weight"


class TensorSource(Protocol):
    """Safe to read from several threads at once."""

    shapes: dict[str, tuple[int, ...]]

    def read(self, name: str) -> torch.Tensor:
        """The tensor on the CPU, in a floating dtype; may be read-only memory of the file."""
        ...

    def content(self) -> Iterator[tuple[str, str, tuple[int, ...], memoryview]]:
        """(name, stored type, shape, bytes) of every tensor, sorted by name."""
        ...


class SafetensorsSource:
    """All *.safetensors of a directory: those of the index, or else every one there is."""

    def __init__(self, directory: Path) -> None:
        files = _safetensors_files(directory)
        self._where: dict[str, tuple[Path, int]] = {}
        self._handles = {}
        self.shapes = {}
        for path in files:
            try:
                handle = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path.name} cannot be read: {error}") from None
            for name in handle.keys():  # noqa: SIM118  safe_open is not a mapping
                self._handles[name] = handle
                self.shapes[name] = tuple(handle.get_slice(name).get_shape())

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handles[name].get_tensor(name)
        if not tensor.is_floating_point():
            raise ModelError(f"tensor {name} is {tensor.dtype}; quantised safetensors are not supported")
        return tensor

    def content(self) -> Iterator[tuple[str, str, tuple[int, ...], memoryview]]:
        for name in sorted(self._handles):
            tensor: torch.Tensor = self._handles[name].get_tensor(name)
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            yield name, str(tensor.dtype), tuple(tensor.shape), data.data


def _safetensors_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        missing = [name for name in names if not (directory / name).is_file()]
        if missing:
            raise ModelError(f"{index.name} lists files that are not there: {', '.join(missing)}")
        return [directory / name for name in names]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{directory} holds no *.safetensors (pickled weights are not read)")
    return files


class GgufSource:
    """Tensors of a GGUF file. permuted_heads: part of a tensor's name -> heads, where a rope permutation is undone."""

    def __init__(self, file: GgufFile, permuted_heads: dict[str, int]) -> None:
        self._file = file
        self._permuted_heads = permuted_heads
        self._names = {_hf_name(name): name for name in file.tensors if name != ROPE_FACTORS}
        self.shapes = {name: file.tensors[stored].shape for name, stored in self._names.items()}

    def read(self, name: str) -> torch.Tensor:
        values = self._file.read(self._names[name])
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        for suffix, heads in self._permuted_heads.items():
            if suffix in name:
                # llama files interleave each rotated pair: [head, pair, 2] back to [head, 2, pair].
                tensor = tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(tensor.shape)
        return tensor

    def content(self) -> Iterator[tuple[str, str, tuple[int, ...], memoryview]]:
        for name, tensor in sorted(self._file.tensors.items()):
            yield name, tensor.kind.name, tensor.shape, self._file.raw(name)


def _hf_name(name: str) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _GGUF_LAYER:
        return f"model.layers.{parts[1]}.{_GGUF_LAYER[parts[2]]}.{parts[3]}"
    return name  # left as it is, so that the check for unexpected tensors names it
