"""ReferenceAttention: the judge of the other backends. Loops over sequences and heads, float64 inside, not clever."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import PagedBatch


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    batch: PagedBatch
    pool: Tensor


class ReferenceAttention:
    """See AttentionBackend. `window`: each token sees only the last `window` positions, itself included."""

    def __init__(self, window: int | None = None) -> None:
        self._window = window

    def plan(self, batch: PagedBatch, pool: Tensor) -> ReferencePlan:
        return ReferencePlan(batch, pool)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, plan: ReferencePlan) -> Tensor:
        batch, pool = plan.batch, plan.pool
        block_tokens = pool.shape[4]
        for token, slot in enumerate(batch.slot_mapping.tolist()):
            pool[slot // block_tokens, :, layer, 0, slot % block_tokens] = k[token]
            pool[slot // block_tokens, :, layer, 1, slot % block_tokens] = v[token]
        out = torch.empty_like(q)
        starts = batch.query_starts.tolist()
        for sequence, context in enumerate(batch.context_lens.tolist()):
            pages = batch.block_tables[sequence, : -(-context // block_tokens)].long()
            history = pool[pages, :, layer].double()  # [pages, kv_heads, 2, block_tokens, head_dim]
            keys, values = history.permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, :context]  # [kv_heads, context, head_dim]
            count = starts[sequence + 1] - starts[sequence]
            for row in range(count):
                position = context - count + row
                first = 0 if self._window is None else max(0, position + 1 - self._window)
                seen = slice(first, position + 1)
                out[starts[sequence] + row] = _one(q[starts[sequence] + row].double(), keys[:, seen], values[:, seen])
        return out


def _one(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q `[heads, head_dim]`, keys and values `[kv_heads, seen, head_dim]` -> `[heads, head_dim]`."""
    share = len(q) // len(keys)
    done = []
    for head, query in enumerate(q):
        weights = torch.softmax(keys[head // share] @ query * query.shape[0] ** -0.5, dim=0)
        done.append(weights @ values[head // share])
    return torch.stack(done)
