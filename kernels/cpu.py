"""CpuAttention: paged attention through torch's SDPA.

Sequences are computed in groups that share one gather and one SDPA call per layer: every sequence with several new
tokens is a group of its own; those with one new token (decodes) are grouped with others of similar length, the heads
that share a K/V head being the rows of one query, so that nothing is expanded. A sequence's result does not depend on
the others but for rounding: padding changes the order of summation (differences up to 1e-5 in float32).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import PagedBatch

#: Decodes share a group while padding is at most this share of the longest one's pages.
MAX_PADDING = 0.25
#: Contexts up to this many pages are grouped whatever the padding: a call costs more than the padded work.
SMALL_PAGES = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences attended in one call. rows: where their new tokens are on the flat axis."""

    rows: slice | Tensor
    queries: int  # new tokens per sequence
    gather: Tensor | None  # int64 [2 * B * kv_heads * pages] rows of one layer's tiles, K first; None: no past
    mask: Tensor | None  # additive, broadcast over [B, heads, queries, pages * block_tokens]
    shape: tuple[int, int, int, int, int]  # 2, B, kv_heads, pages * block_tokens, head_dim
    context: int  # keys to keep of the padded ones, when all sequences have as many


@dataclass(frozen=True, slots=True)
class CpuPlan:
    pool: Tensor
    tiles: Tensor  # the pool as [num_pages * kv_heads * layers * 2, block_tokens * head_dim]
    pages: Tensor  # int64 [T] where the new tokens go
    offsets: Tensor  # int64 [T]
    groups: tuple[Group, ...]


class CpuAttention:
    """See AttentionBackend. `window`: each token sees only the last `window` positions, itself included."""

    def __init__(self, window: int | None = None) -> None:
        self._window = window

    def plan(self, batch: PagedBatch, pool: Tensor) -> CpuPlan:
        num_pages, kv_heads, layers, _, block_tokens, head_dim = pool.shape
        starts, contexts = batch.query_starts.tolist(), batch.context_lens.tolist()
        counts = [end - start for start, end in pairwise(starts)]
        groups = [
            self._chunk(batch, pool, index, starts[index], count, contexts[index])
            for index, count in enumerate(counts)
            if count > 1
        ]
        decodes = [index for index, count in enumerate(counts) if count == 1]
        groups += [self._decodes(batch, pool, run, starts, contexts) for run in _runs(decodes, contexts, block_tokens)]
        return CpuPlan(
            pool=pool,
            tiles=pool.view(num_pages * kv_heads * layers * 2, block_tokens * head_dim),
            pages=batch.slot_mapping // block_tokens,
            offsets=batch.slot_mapping % block_tokens,
            groups=tuple(groups),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, plan: CpuPlan) -> Tensor:
        plan.pool[plan.pages, :, layer, 0, plan.offsets] = k
        plan.pool[plan.pages, :, layer, 1, plan.offsets] = v
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group in plan.groups:
            out[group.rows] = self._attend(group, q[group.rows], k[group.rows], v[group.rows], layer, plan.tiles)
        return out

    def _attend(self, group: Group, q: Tensor, k: Tensor, v: Tensor, layer: int, tiles: Tensor) -> Tensor:
        """q `[B * queries, heads, head_dim]` -> the same shape."""
        heads, head_dim = q.shape[1:]
        kv_heads = k.shape[1]
        share = heads // kv_heads
        if group.gather is None:
            keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]  # [1, kv_heads, T, head_dim]
        else:
            # A tile's row is page, head, layer, plane; the indices are made for layer 0.
            both = F.embedding(group.gather + 2 * layer, tiles).view(group.shape)
            keys, values = both[:, :, :, : group.context].unbind(0)
        if group.queries == 1:
            rows = q.view(-1, kv_heads, share, head_dim)  # the heads of a group are rows that see the same keys
            return F.scaled_dot_product_attention(rows, keys, values, attn_mask=group.mask).view(q.shape)
        rows = q.transpose(0, 1)[None]  # [1, heads, T, head_dim]
        causal = group.mask is None
        done = F.scaled_dot_product_attention(
            rows, keys, values, attn_mask=group.mask, is_causal=causal, enable_gqa=share > 1
        )
        return done[0].transpose(0, 1)

    def _chunk(self, batch: PagedBatch, pool: Tensor, index: int, start: int, count: int, context: int) -> Group:
        """One sequence with several new tokens."""
        rows, past = slice(start, start + count), context - count
        mask = None
        if past or (self._window is not None and context > self._window):
            mask = self._mask(torch.arange(past, context)[:, None], torch.arange(context), pool.dtype)
        if not past:
            return Group(rows, count, None, mask, (0, 0, 0, 0, 0), context)
        gather, shape = _gather(batch.block_tables[index : index + 1], [context], pool)
        return Group(rows, count, gather, mask, shape, context)

    def _decodes(
        self, batch: PagedBatch, pool: Tensor, indices: Sequence[int], starts: list[int], contexts: list[int]
    ) -> Group:
        """Sequences with one new token each."""
        lengths = [contexts[index] for index in indices]
        gather, shape = _gather(batch.block_tables[list(indices)], lengths, pool)
        keep = max(lengths)
        mask = None
        if min(lengths) < keep or (self._window is not None and keep > self._window):
            last = torch.tensor(lengths)[:, None, None, None] - 1
            mask = self._mask(last, torch.arange(keep), pool.dtype)
        return Group(torch.tensor([starts[index] for index in indices]), 1, gather, mask, shape, keep)

    def _mask(self, positions: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor:
        """0 where the token at `positions` sees `keys`, -inf elsewhere. Every token sees itself, so no row is empty."""
        hidden = keys > positions
        if self._window is not None:
            hidden |= keys <= positions - self._window
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _runs(decodes: list[int], contexts: list[int], block_tokens: int) -> list[list[int]]:
    """Decodes by falling length, cut where a sequence would be padded too much."""
    runs: list[list[int]] = []
    longest = 0
    for index in sorted(decodes, key=lambda index: -contexts[index]):
        pages = -(-contexts[index] // block_tokens)
        if runs and (longest <= SMALL_PAGES or longest - pages <= MAX_PADDING * longest):
            runs[-1].append(index)
        else:
            runs.append([index])
            longest = pages
    return runs


def _gather(tables: Tensor, lengths: list[int], pool: Tensor) -> tuple[Tensor, tuple[int, int, int, int, int]]:
    """Rows of the tile view for K then V of layer 0, ordered [2, B, kv_heads, pages], and the gathered shape.

    Table entries beyond a sequence's pages are padding (page 0): their bytes are masked, but they must be finite.
    """
    _, kv_heads, layers, _, block_tokens, head_dim = pool.shape
    pages = -(-max(lengths) // block_tokens)
    table = tables[:, None, :pages].to(torch.int64)  # [B, 1, pages]
    tile = (table * kv_heads + torch.arange(kv_heads)[None, :, None]) * (2 * layers)
    return torch.stack((tile, tile + 1)).reshape(-1), (2, len(lengths), kv_heads, pages * block_tokens, head_dim)
