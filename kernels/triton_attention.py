"""TritonAttention: paged attention on the GPU, reading the pool in place through the block table.

The query heads that share a K/V head are rows of one tile (GQA), so that each key is read once. Chunks go to one
kernel; decodes to another, which cuts their keys into splits so that few long sequences still fill the device. Both
always run on their own sequences, and splits lie at fixed positions: on one device a sequence's result does not depend
on the rest of the batch, not in a bit. `plan` never waits for the device.
"""

# Triton's types know neither a launch's keywords nor that constexpr takes plain values.
# pyright: reportCallIssue=false, reportArgumentType=false

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from .batch import PagedBatch, check_window
from .triton_kernels import chunk_kernel, decode_kernel, merge_kernel, write_kernel

#: (token, query head) pairs of a program, and keys of one iteration of it. tl.dot wants 16 or more of each.
CHUNK_ROWS = 64
DECODE_ROWS = 16
KEYS = 32
#: Keys of a decode that one program walks.
SPLIT_KEYS = 512
#: "All positions" as a window.
UNBOUNDED = 1 << 30
LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class TritonPlan:
    batch: PagedBatch
    pool: Tensor
    window: int


class TritonAttention:
    """See AttentionBackend."""

    def __init__(self, *, scale: float | None = None) -> None:
        self._scale = scale
        self._scratch: Tensor | None = None

    def plan(self, batch: PagedBatch, pool: Tensor, *, window: int | None = None) -> TritonPlan:
        check_window(window)
        return TritonPlan(batch, pool, UNBOUNDED if window is None else window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, plan: TritonPlan) -> Tensor:
        batch, pool = plan.batch, plan.pool[:, :, layer]
        kv_heads, _, block_tokens, head_dim = pool.shape[1:]
        padded_dim = max(16, triton.next_power_of_2(head_dim))
        write_kernel[(len(k), kv_heads)](
            k, v, pool, batch.slot_mapping, *k.stride()[:2], *v.stride()[:2], *pool.stride()[:2],
            block_tokens=block_tokens, head_dim=head_dim, padded_dim=padded_dim,
        )  # fmt: skip
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        if batch.max_query > 1:
            self._chunks(q, pool, out, plan, padded_dim)
        if len(batch.context_lens) > 0:
            self._decodes(q, pool, out, plan, padded_dim)
        return out

    def _chunks(self, q: Tensor, pool: Tensor, out: Tensor, plan: TritonPlan, padded_dim: int) -> None:
        batch = plan.batch
        kv_heads, _, block_tokens, head_dim = pool.shape[1:]
        share = q.shape[1] // kv_heads
        grid = (triton.cdiv(batch.max_query * share, CHUNK_ROWS), len(batch.context_lens), kv_heads)
        chunk_kernel[grid](
            q, pool, out, batch.block_tables, batch.query_starts, batch.context_lens, *q.stride()[:2], out.stride(0),
            batch.block_tables.stride(0), *pool.stride()[:2], self._log2_scale(head_dim), plan.window,
            share=share, rows=CHUNK_ROWS, keys=KEYS,
            block_tokens=block_tokens, head_dim=head_dim, padded_dim=padded_dim,
        )  # fmt: skip

    def _decodes(self, q: Tensor, pool: Tensor, out: Tensor, plan: TritonPlan, padded_dim: int) -> None:
        batch = plan.batch
        kv_heads, _, block_tokens, head_dim = pool.shape[1:]
        heads, sequences = q.shape[1], len(batch.context_lens)
        splits = triton.cdiv(batch.max_context, SPLIT_KEYS)
        partial = self._room(splits * sequences * heads * (head_dim + 2), q.device)
        partial_split, partial_sequence = sequences * heads * (head_dim + 2), heads * (head_dim + 2)
        share = heads // kv_heads
        decode_kernel[(splits, sequences, kv_heads)](
            q, pool, partial, batch.block_tables, batch.query_starts, batch.context_lens, *q.stride()[:2],
            partial_split, partial_sequence, batch.block_tables.stride(0), *pool.stride()[:2],
            self._log2_scale(head_dim), plan.window,
            share=share, rows=max(DECODE_ROWS, triton.next_power_of_2(share)), keys=KEYS, split_keys=SPLIT_KEYS,
            block_tokens=block_tokens, head_dim=head_dim, padded_dim=padded_dim,
        )  # fmt: skip
        merge_kernel[(sequences, heads)](
            partial, out, batch.query_starts, batch.context_lens, partial_split, partial_sequence, out.stride(0),
            plan.window, split_keys=SPLIT_KEYS, keys=KEYS, head_dim=head_dim, padded_dim=padded_dim,
        )  # fmt: skip

    def _log2_scale(self, head_dim: int) -> float:
        """Scores are in base 2: exp2 is the GPU's own exponential."""
        return (head_dim**-0.5 if self._scale is None else self._scale) * LOG2_E

    def _room(self, elements: int, device: torch.device) -> Tensor:
        """Scratch of at least `elements`; the stream's order keeps one layer's use apart from the next one's."""
        if self._scratch is None or self._scratch.numel() < elements:
            with torch.inference_mode(False):  # usable in and out of inference mode
                self._scratch = torch.empty(elements, dtype=torch.float32, device=device)
        return self._scratch
