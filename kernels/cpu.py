"""CpuAttention: paged attention through torch's SDPA.

A sequence with several new tokens (a chunk) is attended alone, a slice of its queries at a time, so that keys no query
of the slice sees cost nothing. Sequences with one new token (decodes) are attended in groups of similar length, one
gather and one SDPA call a group, the query heads that share a K/V head being the rows of one query, so that nothing is
expanded. Scratch memory for the gathered K and V is kept and reused.

What depends on the rest of the batch: nothing for a chunk. For a decode, the padding to the longest of its group
changes the order of summation: results differ by rounding, at most 1e-5 in float32 for values of size 1.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import PagedBatch, check_window

#: Queries of a chunk attended in one call. 128 against the whole of 512: a quarter faster, since fewer masked keys.
SLICE_QUERIES = 128
#: Decodes share a group while padding is at most this share of the longest one's pages.
MAX_PADDING = 0.25
#: Contexts up to this many pages are grouped whatever the padding: a call costs more than the padded work.
SMALL_PAGES = 8
#: Bytes gathered for one group: they should still be in the CPU's cache when SDPA reads them.
GROUP_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Gather:
    """K and V of some sequences, copied from one layer's tiles."""

    tiles: Tensor  # int64 [2 * B * kv_heads * pages]: which tiles of layer 0, K before V
    flat: Tensor  # scratch [2 * B * kv_heads * pages, block_tokens * head_dim]
    keys: Tensor  # scratch seen as [B, kv_heads, span, head_dim]
    values: Tensor
    unwritten: Tensor | None  # int64: rows (of head_dim) of scratch beyond a context; never trusted, made 0


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive queries of a chunk. rows: on the chunk's axis; keys: those that any of the queries sees."""

    rows: slice
    keys: slice
    mask: Tensor  # [queries, keys], additive


@dataclass(frozen=True, slots=True)
class Chunk:
    rows: slice  # on the flat axis of new tokens
    past: Gather | None  # None: the new tokens are the whole context, so that their fresh k and v are all there is
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Decodes:
    rows: Tensor | None  # int64 [B] on the flat axis; None: all of it, in order
    gather: Gather
    mask: Tensor | None  # [B, 1, 1, span], additive


@dataclass(frozen=True, slots=True)
class CpuPlan:
    rows: Tensor  # the pool as [num_pages * kv_heads * layers * 2 * block_tokens, head_dim]
    tiles: Tensor  # the pool as [num_pages * kv_heads * layers * 2, block_tokens * head_dim]
    block_tokens: int
    writes: Tensor  # int64 [2 * tokens * kv_heads]: rows of layer 0 that the new K and V go to
    tokens: int  # new tokens without padding
    chunks: tuple[Chunk, ...]
    decodes: tuple[Decodes, ...]


class CpuAttention:
    """See AttentionBackend."""

    def __init__(self, *, scale: float | None = None) -> None:
        self._scale = scale
        self._scratch: Tensor | None = None

    def plan(self, batch: PagedBatch, pool: Tensor, *, window: int | None = None) -> CpuPlan:
        check_window(window)
        planner = _Planner(batch, pool, window, self._room)
        num_pages, kv_heads, layers, _, block_tokens, head_dim = pool.shape
        return CpuPlan(
            rows=pool.view(num_pages * kv_heads * layers * 2 * block_tokens, head_dim),
            tiles=pool.view(num_pages * kv_heads * layers * 2, block_tokens * head_dim),
            block_tokens=block_tokens,
            writes=planner.writes(),
            tokens=planner.tokens,
            chunks=tuple(planner.chunks()),
            decodes=tuple(planner.decodes()),
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, plan: CpuPlan) -> Tensor:
        # Within a (page, head) tiles are ordered by layer, then plane: a later layer's are the same ones, shifted.
        tiles, rows = plan.tiles[2 * layer :], plan.rows[2 * layer * plan.block_tokens :]
        fresh = torch.stack((k[: plan.tokens], v[: plan.tokens]))
        rows.index_copy_(0, plan.writes, fresh.view(-1, q.shape[2]))
        if not plan.chunks and len(plan.decodes) == 1 and plan.decodes[0].rows is None:
            return self._decode(plan.decodes[0], q, tiles)
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        for chunk in plan.chunks:
            self._attend_chunk(chunk, q[chunk.rows], fresh[:, chunk.rows], tiles, out[chunk.rows])
        for group in plan.decodes:
            picked = q if group.rows is None else q.index_select(0, group.rows)
            done = self._decode(group, picked, tiles)
            out.index_copy_(0, group.rows, done) if group.rows is not None else out.copy_(done)
        return out

    def _decode(self, group: Decodes, q: Tensor, tiles: Tensor) -> Tensor:
        """q [B, heads, head_dim] -> the same shape."""
        gather = group.gather
        _fill(gather, tiles)
        kv_heads, head_dim = gather.keys.shape[1], q.shape[2]
        grouped = q.view(len(q), kv_heads, -1, head_dim)  # the heads of a group are rows that see the same keys
        done = F.scaled_dot_product_attention(
            grouped, gather.keys, gather.values, attn_mask=group.mask, scale=self._scale
        )
        return done.reshape(q.shape)

    def _attend_chunk(self, chunk: Chunk, q: Tensor, fresh: Tensor, tiles: Tensor, out: Tensor) -> None:
        """q, out [count, heads, head_dim]; fresh [2, count, kv_heads, head_dim]."""
        if chunk.past is None:
            keys, values = fresh.transpose(1, 2)[:, None]  # [1, kv_heads, count, head_dim]
        else:
            _fill(chunk.past, tiles)
            keys, values = chunk.past.keys, chunk.past.values
        gqa = q.shape[1] != keys.shape[1]
        queries = q.transpose(0, 1)[None]  # [1, heads, count, head_dim]
        for part in chunk.slices:
            done = F.scaled_dot_product_attention(
                queries[:, :, part.rows],
                keys[:, :, part.keys],
                values[:, :, part.keys],
                attn_mask=part.mask,
                scale=self._scale,
                enable_gqa=gqa,
            )
            out[part.rows] = done[0].transpose(0, 1)

    def _room(self, elements: int, dtype: torch.dtype) -> Tensor:
        """Scratch of at least `elements`. Groups are attended one after another, so that they share it."""
        if self._scratch is None or self._scratch.numel() < elements or self._scratch.dtype != dtype:
            with torch.inference_mode(False):  # usable in and out of inference mode
                self._scratch = torch.empty(elements, dtype=dtype)
        return self._scratch


def _fill(gather: Gather, tiles: Tensor) -> None:
    """Copy one layer's K and V into scratch. tiles: the pool's, from that layer's first on."""
    torch.index_select(tiles, 0, gather.tiles, out=gather.flat)
    if gather.unwritten is not None:
        gather.flat.view(-1, gather.keys.shape[3]).index_fill_(0, gather.unwritten, 0.0)


class _Planner:
    """Turns one batch into indices and masks. Lives during one `plan`."""

    def __init__(
        self, batch: PagedBatch, pool: Tensor, window: int | None, room: Callable[[int, torch.dtype], Tensor]
    ) -> None:
        self._batch = batch
        self._pool = pool
        self._window = window
        self._room = room
        self._starts: list[int] = batch.query_starts.tolist()
        self._contexts: list[int] = batch.context_lens.tolist()
        self._counts = [end - start for start, end in pairwise(self._starts)]
        _, self._kv_heads, self._layers, _, self._block_tokens, self._head_dim = pool.shape
        self.tokens = self._starts[-1]

    def writes(self) -> Tensor:
        """Rows of layer 0 where the new tokens go, ordered [2, tokens, kv_heads] as k and v are."""
        slots = self._batch.slot_mapping[: self.tokens]
        pages, offsets = slots // self._block_tokens, slots % self._block_tokens
        tile = (pages[:, None] * self._kv_heads + torch.arange(self._kv_heads)) * (2 * self._layers)
        keys = tile * self._block_tokens + offsets[:, None]
        return torch.stack((keys, keys + self._block_tokens)).view(-1)

    def chunks(self) -> Iterator[Chunk]:
        chunks = [index for index, count in enumerate(self._counts) if count > 1]
        if not chunks:
            return
        longest = max(self._contexts[index] for index in chunks)
        hidden = self._hidden(longest if self._window is None else min(longest, SLICE_QUERIES + self._window))
        for index in chunks:
            count, context = self._counts[index], self._contexts[index]
            rows = slice(self._starts[index], self._starts[index] + count)
            past = context - count
            first = 0 if past == 0 else self._first_page(past) * self._block_tokens
            gather = None if past == 0 else self._gather([index], [first // self._block_tokens])
            yield Chunk(rows, gather, tuple(self._slices(count, past, first, hidden)))

    def _slices(self, count: int, past: int, first: int, hidden: Tensor) -> Iterator[Slice]:
        """first: the position of the first key there is. hidden: see `_hidden`."""
        for begin in range(0, count, SLICE_QUERIES):
            end = min(begin + SLICE_QUERIES, count)
            lowest = first if self._window is None else max(first, past + begin + 1 - self._window)
            keys = slice(lowest - first, past + end - first)
            yield Slice(slice(begin, end), keys, hidden[begin - end :, lowest - past - end :])

    def _hidden(self, keys: int) -> Tensor:
        """The mask [SLICE_QUERIES, keys] of queries at the end of `keys` keys; its lower right corners serve all."""
        back = torch.arange(keys - 1, -1, -1) - torch.arange(SLICE_QUERIES - 1, -1, -1)[:, None]
        hidden = back < 0
        if self._window is not None:
            hidden |= back >= self._window
        return torch.zeros(hidden.shape, dtype=self._pool.dtype).masked_fill_(hidden, float("-inf"))

    def decodes(self) -> Iterator[Decodes]:
        ones = [index for index, count in enumerate(self._counts) if count == 1]
        firsts = {index: self._first_page(self._contexts[index] - 1) for index in ones}
        pages = {index: -(-self._contexts[index] // self._block_tokens) - firsts[index] for index in ones}
        page_bytes = 2 * self._kv_heads * self._block_tokens * self._head_dim * self._pool.element_size()
        for run in _runs(pages, GROUP_BYTES // page_bytes):
            everything = len(run) == len(self._batch.slot_mapping)  # a row each, and no padding rows
            yield Decodes(
                None if everything else torch.tensor([self._starts[index] for index in run]),
                self._gather(run, [firsts[index] for index in run]),
                self._mask(run, [firsts[index] for index in run]),
            )

    def _mask(self, sequences: Sequence[int], first_pages: Sequence[int]) -> Tensor | None:
        """[B, 1, 1, span] of decodes; None when all see all keys."""
        ends = [self._contexts[i] - first * self._block_tokens for i, first in zip(sequences, first_pages, strict=True)]
        if min(ends) == max(ends) and (self._window is None or max(ends) <= self._window):
            return None
        keys, end = torch.arange(max(ends)), torch.tensor(ends)[:, None, None, None]
        hidden = keys >= end
        if self._window is not None:
            hidden |= keys < end - self._window
        return torch.zeros(hidden.shape, dtype=self._pool.dtype).masked_fill_(hidden, float("-inf"))

    def _first_page(self, position: int) -> int:
        """The first page that a query at `position` or later sees."""
        return 0 if self._window is None else max(0, position + 1 - self._window) // self._block_tokens

    def _gather(self, sequences: Sequence[int], first_pages: Sequence[int]) -> Gather:
        """Pages of some sequences from first_pages on, padded to the longest with page 0."""
        block_tokens, kv_heads, head_dim = self._block_tokens, self._kv_heads, self._head_dim
        spans = [self._contexts[i] - first * block_tokens for i, first in zip(sequences, first_pages, strict=True)]
        pages = -(-max(spans) // block_tokens)
        table = torch.zeros(len(spans), pages, dtype=torch.int64)
        for row, index, first, span in zip(table, sequences, first_pages, spans, strict=True):
            used = -(-span // block_tokens)
            row[:used] = self._batch.block_tables[index, first : first + used]
        tile = (table[:, None] * kv_heads + torch.arange(kv_heads)[:, None]) * (
            2 * self._layers
        )  # [B, kv_heads, pages]
        tiles = torch.stack((tile, tile + 1)).view(-1)
        flat = self._room(len(tiles) * block_tokens * head_dim, self._pool.dtype)
        flat = flat[: len(tiles) * block_tokens * head_dim].view(len(tiles), -1)
        both = flat.view(2, len(spans), kv_heads, pages * block_tokens, head_dim)
        unwritten = None
        if min(spans) < max(spans):
            beyond = torch.arange(pages * block_tokens) >= torch.tensor(spans)[:, None, None]  # [B, 1, keys]
            unwritten = beyond.expand(2, -1, kv_heads, -1).reshape(-1).nonzero().view(-1)
        return Gather(tiles, flat, both[0, :, :, : max(spans)], both[1, :, :, : max(spans)], unwritten)


def _runs(pages: dict[int, int], most: int) -> Iterator[list[int]]:
    """Decodes of similar length, each run in the batch's order; `most` pages a run, padding included, or one decode."""
    run: list[int] = []
    longest = 0
    for index in sorted(pages, key=lambda index: -pages[index]):
        alike = longest <= SMALL_PAGES or longest - pages[index] <= MAX_PADDING * longest
        if run and not (alike and (len(run) + 1) * longest <= most):
            yield sorted(run)
            run = []
        if not run:
            longest = pages[index]
        run.append(index)
    if run:
        yield sorted(run)
