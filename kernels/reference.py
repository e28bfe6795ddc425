"""ReferenceAttention: the judge of the other backends. Loops over sequences and heads, float64 inside, not clever."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .batch import PagedBatch, check_window


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    batch: PagedBatch
    pool: Tensor
    window: int | None


class ReferenceAttention:
    """See AttentionBackend."""

    def __init__(self, *, scale: float | None = None) -> None:
        self._scale = scale

    def plan(self, batch: PagedBatch, pool: Tensor, *, window: int | None = None) -> ReferencePlan:
        check_window(window)
        return ReferencePlan(batch, pool, window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, plan: ReferencePlan) -> Tensor:
        batch, pool = plan.batch, plan.pool
        block_tokens = pool.shape[4]
        scale = q.shape[-1] ** -0.5 if self._scale is None else self._scale
        for token, slot in enumerate(batch.slot_mapping.tolist()):
            if slot >= 0:
                pool[slot // block_tokens, :, layer, 0, slot % block_tokens] = k[token]
                pool[slot // block_tokens, :, layer, 1, slot % block_tokens] = v[token]
        out = torch.zeros_like(q)
        starts = batch.query_starts.tolist()
        for sequence, context in enumerate(batch.context_lens.tolist()):
            pages = batch.block_tables[sequence, : -(-context // block_tokens)].long()
            history = pool[pages, :, layer].double()  # [pages, kv_heads, 2, block_tokens, head_dim]
            keys, values = history.permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, :context]  # [kv_heads, context, head_dim]
            count = starts[sequence + 1] - starts[sequence]
            for row in range(count):
                position = context - count + row
                first = 0 if plan.window is None else max(0, position + 1 - plan.window)
                seen = slice(first, position + 1)
                query = q[starts[sequence] + row].double() * scale
                out[starts[sequence] + row] = _one(query, keys[:, seen], values[:, seen])
        return out


def _one(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """q `[heads, head_dim]`, scaled; keys and values `[kv_heads, seen, head_dim]` -> `[heads, head_dim]`."""
    share = len(q) // len(keys)
    done = []
    for head, query in enumerate(q):
        weights = torch.softmax(keys[head // share] @ query, dim=0)
        done.append(weights @ values[head // share])
    return torch.stack(done)
