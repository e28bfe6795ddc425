"""Runner: one step's chunks as flat tensors, through the model, to logits."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..kernels import AttentionBackend, PagedBatch
from .model import LlamaModel
from .pool import KVPool
from .scheduler import Chunk


class Runner:
    """Holds model, backend and pool; keeps nothing between steps."""

    def __init__(self, model: LlamaModel, backend: AttentionBackend, pool: KVPool) -> None:
        self._model = model
        self._backend = backend
        self._pool = pool

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        """Computes the KV of all chunks into their pages; float32 logits [F, vocab], one row a final chunk, in the
        chunks' order."""
        device = self._pool.tensor.device
        tokens = np.concatenate([_span(chunk) for chunk in chunks])
        positions = np.concatenate([np.arange(c.sequence.computed, c.sequence.computed + c.count) for c in chunks])
        ends = np.cumsum([chunk.count for chunk in chunks])
        rows = [int(end) - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.final]
        plan = self._backend.plan(
            self._batch(chunks, ends, positions), self._pool.tensor, window=self._model.config.window
        )
        return self._model.forward(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(positions).to(device),
            plan,
            torch.tensor(rows, dtype=torch.int64, device=device),
            self._backend,
        )

    def _batch(self, chunks: Sequence[Chunk], ends: np.ndarray, positions: np.ndarray) -> PagedBatch:
        device, block_tokens = self._pool.tensor.device, self._pool.block_tokens
        contexts = [chunk.sequence.computed + chunk.count for chunk in chunks]
        used = [-(-context // block_tokens) for context in contexts]
        tables = np.zeros((len(chunks), max(used)), dtype=np.int32)
        for row, chunk, pages in zip(tables, chunks, used, strict=True):
            row[:pages] = chunk.sequence.table.pages[:pages]
        owners = np.repeat(np.arange(len(chunks)), [chunk.count for chunk in chunks])
        slots = tables[owners, positions // block_tokens].astype(np.int64) * block_tokens + positions % block_tokens
        starts = np.concatenate(([0], ends)).astype(np.int32)
        return PagedBatch(
            query_starts=torch.from_numpy(starts).to(device),
            context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
            block_tables=torch.from_numpy(tables).to(device),
            slot_mapping=torch.from_numpy(slots).to(device),
            max_query=max(chunk.count for chunk in chunks),
            max_context=max(contexts),
        )


def _span(chunk: Chunk) -> np.ndarray:
    seq = chunk.sequence
    return np.asarray(seq.tokens[seq.computed : seq.computed + chunk.count], dtype=np.int64)
