"""Tiny random models of every family, written by transformers, and one way to run ours on a whole prompt."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from kvterrace.engine.model import LoadedModel
from kvterrace.kernels import PagedBatch, make_backend
from tokenizers import decoders, models, pre_tokenizers

FAMILIES: dict[str, tuple[type[transformers.PretrainedConfig], dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama-tied-biased": (
        transformers.LlamaConfig,
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama-mqa": (transformers.LlamaConfig, {"num_key_value_heads": 1, "head_dim": 32}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 16}),
}
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices: a second thread costs more in waiting than it computes, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., tuple[Path, Any]]:
    """write_model(family, folder="model", rope=..., **config) -> (directory, transformers model)."""

    def write(family: str, folder: str = "model", *, rope: dict[str, Any] | None = None, **config: Any):
        kind, extra = FAMILIES[family]
        scaling = {"rope_theta": 10000.0, "rope_type": "default", **(rope or {})}
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(
            kind(**{**SIZES, **extra, "rope_parameters": scaling, **config})
        ).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # norms and biases start as ones and zeros, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
        directory = tmp_path / folder
        model.save_pretrained(directory)
        byte_tokenizer().save(str(directory / "tokenizer.json"))
        return directory, model

    return write


def byte_tokenizer() -> tokenizers.Tokenizer:
    """One token a byte, ids in the order of the bytes' spelling."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.fixture
def edit_json() -> Callable[..., None]:
    def edit(path: Path, **changes: Any) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


class Runner:
    """Feeds chunks of sequences through a model; each sequence owns consecutive pages of one small pool."""

    def __init__(self, loaded: LoadedModel, *, sequences: int = 1, pages: int = 8, block_tokens: int = 16) -> None:
        config = loaded.config
        self._model = loaded.model
        self._block_tokens = block_tokens
        self._tables = torch.arange(sequences * pages, dtype=torch.int32).view(sequences, pages)
        self._lengths = [0] * sequences
        shape = (sequences * pages, config.kv_heads, config.layers, 2, block_tokens, config.head_dim)
        self._pool = torch.zeros(shape, dtype=loaded.model.dtype)
        self._backend = make_backend("cpu")

    def step(self, chunks: Sequence[Sequence[int]], rows: Sequence[int] | None = None) -> torch.Tensor:
        """chunks[i]: next tokens of sequence i. Logits of `rows`, default all."""
        counts = [len(chunk) for chunk in chunks]
        positions = [torch.arange(n) + start for n, start in zip(counts, self._lengths, strict=True)]
        self._lengths = [n + start for n, start in zip(counts, self._lengths, strict=True)]
        slots = [
            table[at // self._block_tokens].long() * self._block_tokens + at % self._block_tokens
            for table, at in zip(self._tables, positions, strict=True)
        ]
        batch = PagedBatch(
            query_starts=torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32),
            context_lens=torch.tensor(self._lengths, dtype=torch.int32),
            block_tables=self._tables,
            slot_mapping=torch.cat(slots),
            max_query=max(counts),
            max_context=max(self._lengths),
        )
        tokens = torch.tensor([token for chunk in chunks for token in chunk])
        wanted = torch.arange(len(tokens)) if rows is None else torch.tensor(rows, dtype=torch.int64)
        plan = self._backend.plan(batch, self._pool, window=self._model.config.window)
        return self._model.forward(tokens, torch.cat(positions), plan, wanted, self._backend)


@pytest.fixture
def runner() -> type[Runner]:
    return Runner
