"""CPU attention over paged KV against plain SDPA over contiguous KV: what paging costs. SmolLM2-135M's shapes."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from kvterrace.kernels import CpuAttention, PagedBatch
from torch import Tensor

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS = 8, 9, 3, 64, 16
REPEATS = 15


def run() -> list[dict[str, object]]:
    """Ratios of time per step, plan included: medians over interleaved repeats."""
    with torch.inference_mode():
        return [
            _ratio("kernels.decode8_attend_ratio", 8, 1, 512),
            _ratio("kernels.prefill_attend_ratio", 1, 512, 512),
        ]


def _ratio(metric: str, sequences: int, new: int, context: int) -> dict[str, object]:
    random = torch.Generator().manual_seed(0)
    pages = -(-context // BLOCK_TOKENS)
    pool = torch.randn(sequences * pages, KV_HEADS, LAYERS, 2, BLOCK_TOKENS, HEAD_DIM, generator=random)
    tables = torch.randperm(sequences * pages, generator=random).view(sequences, pages)
    fresh = torch.randn(sequences * new, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=random)
    q, k, v = fresh.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    positions = torch.arange(context - new, context)
    batch = PagedBatch(
        query_starts=torch.arange(sequences + 1, dtype=torch.int32) * new,
        context_lens=torch.full((sequences,), context, dtype=torch.int32),
        block_tables=tables.to(torch.int32),
        slot_mapping=(tables[:, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS).view(-1),
        max_query=new,
        max_context=context,
    )
    backend = CpuAttention()

    def paged() -> Tensor:
        plan = backend.plan(batch, pool)
        return [backend.attend(q, k, v, layer, plan) for layer in range(LAYERS)][-1]

    paged()  # writes the fresh K and V, so that both sides have the same data
    contiguous = pool[tables].permute(3, 4, 0, 2, 1, 5, 6).flatten(4, 5)  # [layers, 2, B, kv_heads, context, head_dim]

    def plain() -> Tensor:
        if new == 1:
            rows = q.reshape(sequences, KV_HEADS, -1, HEAD_DIM)
            done = [F.scaled_dot_product_attention(rows, keys, values) for keys, values in contiguous]
            return done[-1].reshape(q.shape)
        rows = q.transpose(0, 1)[None]
        done = [
            F.scaled_dot_product_attention(rows, keys, values, is_causal=True, enable_gqa=True)
            for keys, values in contiguous
        ]
        return done[-1][0].transpose(0, 1)

    torch.testing.assert_close(paged(), plain(), atol=1e-5, rtol=0)  # a figure for the same work, or none
    ratios = [_seconds(paged) / _seconds(plain) for _ in range(REPEATS)]
    return {"metric": metric, "value": statistics.median(ratios), "unit": "x", "of": "SDPA on contiguous K and V"}


def _seconds(step: Callable[[], Tensor]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
