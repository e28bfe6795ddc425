"""load_model: one call from a path to a model that runs, its tokenizer and its digest."""

import dataclasses
import json
import logging
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tokenizers
import torch

from .chat import ChatTemplate
from .config import FAMILIES, ModelConfig, config_from_gguf, config_from_hf
from .errors import ModelError
from .gguf_file import GgufFile
from .gguf_tokenizer import build_tokenizer, eos_ids, special_texts
from .llama import LlamaModel
from .sources import ROPE_FACTORS, GgufSource, SafetensorsSource, TensorSource
from .tokenizer import Tokenizer
from .weights import Progress, build_weights, weights_digest

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    """digest: 32 bytes that change with the weights, the dtype, and every configuration field that changes KV; they do
    not change with the path. name: of the directory, or of the file without its suffix."""

    config: ModelConfig
    model: LlamaModel
    tokenizer: Tokenizer
    digest: bytes
    name: str


def load_model(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a Hugging Face directory or a GGUF file.

    dtype: of weights, activations and KV; None is float32 on a CPU, bfloat16 elsewhere.
    progress: called from this thread with (0..1, what is being done).

    Raises:
        ModelError: unsupported architecture or tokenizer, missing or damaged files or tensors; it names them.
        ChatTemplateError: the model's chat template does not parse.
    """
    path, device = Path(path), torch.device(device)
    dtype = dtype or (torch.float32 if device.type == "cpu" else torch.bfloat16)
    report = progress or (lambda _fraction, _what: None)
    began = time.monotonic()
    report(0.0, "reading metadata")
    if path.is_dir():
        config, source, tokenizer = _open_directory(path)
    elif path.is_file():
        config, source, tokenizer = _open_gguf(path)
    else:
        raise ModelError(f"{path} does not exist; a model is a Hugging Face directory or a GGUF file")
    report(0.1, "reading tensors")
    with ThreadPoolExecutor(1) as beside:
        digest = beside.submit(weights_digest, config, source, dtype)
        weights = build_weights(config, source, device, dtype, report)
        report(0.95, "computing the weights digest")
        loaded = LoadedModel(
            config, LlamaModel(config, weights), tokenizer, digest.result(), path.name if path.is_dir() else path.stem
        )
    log.info("loaded %s in %.1f s, weights digest %s", loaded.name, time.monotonic() - began, loaded.digest.hex()[:16])
    report(1.0, "ready")
    return loaded


def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """A model's tokenizer alone. ModelError for one that is not there, or not supported."""
    if path.is_dir():
        return _directory_tokenizer(path)
    if not path.is_file():
        raise ModelError(f"{path} does not exist; a model is a Hugging Face directory or a GGUF file")
    backend = build_tokenizer(GgufFile(path).metadata)
    Tokenizer(backend, eos_ids=(), chat=None)  # what the engine could not use is refused here, too
    return backend


def _open_gguf(path: Path) -> tuple[ModelConfig, TensorSource, Tokenizer]:
    file = GgufFile(path)
    meta = file.metadata
    config = config_from_gguf(meta, {name: tensor.shape for name, tensor in file.tensors.items()})
    if ROPE_FACTORS in file.tensors:
        rope = dataclasses.replace(config.rope, dim_factors=tuple(file.read(ROPE_FACTORS).reshape(-1).tolist()))
        config = dataclasses.replace(config, rope=rope)
    permuted = {"q_proj": config.heads, "k_proj": config.kv_heads} if config.family == "llama" else {}
    template = meta.get("tokenizer.chat_template")
    chat = ChatTemplate(template, special_texts(meta)) if template else None
    return config, GgufSource(file, permuted), Tokenizer(build_tokenizer(meta), eos_ids=eos_ids(meta), chat=chat)


def _open_directory(path: Path) -> tuple[ModelConfig, TensorSource, Tokenizer]:
    raw = _read_json(path / "config.json")
    if raw is None:
        raise ModelError(f"{path} has no config.json; supported: {FAMILIES}, as safetensors or GGUF")
    config = config_from_hf(raw)
    backend = _directory_tokenizer(path)
    settings = _read_json(path / "tokenizer_config.json") or {}
    special = {
        name: value["content"] if isinstance(value, dict) else value
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (value := settings.get(name)) is not None
    }
    generation = _read_json(path / "generation_config.json") or {}
    ends = [raw.get("eos_token_id"), generation.get("eos_token_id"), backend.token_to_id(special.get("eos_token", ""))]
    tokenizer = Tokenizer(backend, eos_ids=_flatten(ends), chat=_chat_template(path, settings, special))
    return config, SafetensorsSource(path), tokenizer


def _directory_tokenizer(path: Path) -> tokenizers.Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{path} has no tokenizer.json; convert the tokenizer to the fast format first")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  the library raises nothing narrower
        raise ModelError(f"{file} is no tokenizer: {error}") from None


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path.name} is not valid JSON: {error}") from None


def _flatten(ids: Iterable[int | list[int] | None]) -> set[int]:
    lists = (entry if isinstance(entry, list) else [entry] for entry in ids if entry is not None)
    return {token_id for entry in lists for token_id in entry}


def _chat_template(path: Path, settings: dict[str, Any], special: dict[str, str]) -> ChatTemplate | None:
    file = path / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if not source:
        return None
    if isinstance(source, list):  # several, each {"name", "template"}
        source = {entry["name"]: entry["template"] for entry in source}
    return ChatTemplate(source, special)
