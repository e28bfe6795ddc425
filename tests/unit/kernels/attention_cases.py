"""Attention cases for every backend, each judged by the plain reference.

Run as a program, it computes all cases with Triton, in its interpreter if TRITON_INTERPRET=1, and writes JSON
{name: [largest difference, pool equal]}: the interpreter is chosen when Triton is first imported, hence by process.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from kvterrace.kernels import AttentionBackend, PagedBatch, ReferenceAttention

LAYERS, LAYER = 3, 1


@dataclass(frozen=True)
class Case:
    sequences: Sequence[tuple[int, int]]  # (new tokens, context with them)
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 16
    block_tokens: int = 16
    window: int | None = None
    scale: float | None = None
    shared: int = 0  # leading pages of the first sequence that all others have too
    padding: int = 0  # rows behind the last sequence


CASES = {
    "one-token prompt": Case([(1, 1)]),
    "prompts around a block": Case([(15, 15), (16, 16), (17, 17)]),
    "chunk with past": Case([(20, 70), (2, 33)]),
    "chunk that ends around a block": Case([(31, 47), (32, 48), (33, 49)]),
    "decodes around a block": Case([(1, 31), (1, 32), (1, 33)]),
    "decodes of unlike lengths": Case([(1, 3), (1, 200), (1, 17), (1, 190)]),
    "mixed": Case([(5, 5), (1, 33), (40, 64), (1, 16), (3, 90), (1, 1)]),
    "MHA": Case([(7, 7), (4, 37), (1, 21)], heads=3, kv_heads=3),
    "MQA": Case([(7, 7), (4, 37), (1, 21)], heads=4, kv_heads=1),
    "head_dim no power of two": Case([(7, 7), (4, 37), (1, 21)], head_dim=24),
    "small blocks": Case([(9, 9), (4, 13), (1, 12)], block_tokens=4),
    "window of itself": Case([(20, 20), (1, 40)], window=1),
    "window of a block": Case([(40, 40), (5, 70), (1, 64), (1, 9)], window=16),
    "window across blocks": Case([(40, 40), (5, 70), (1, 64), (1, 9)], window=20),
    "window larger than all": Case([(6, 20), (1, 20)], window=100),
    "shared prefix": Case([(5, 37), (1, 33), (1, 40)], shared=2),
    "scale": Case([(5, 21), (1, 33)], scale=0.7),
    "padding rows": Case([(3, 3), (1, 18), (0, 20)], padding=3),
    "nothing but padding": Case([(0, 0)], padding=2),
}
LONG_CASES = {
    "long chunk": Case([(300, 300), (260, 700)], heads=4),
    "long chunk in a window": Case([(300, 300), (260, 700)], heads=4, window=150),
    "long decodes": Case([(1, 511), (1, 512), (1, 513), (1, 1500)], heads=4),
    "wide heads": Case([(130, 200), (1, 513)], heads=8, kv_heads=2, head_dim=128),
}


@dataclass
class Problem:
    batch: PagedBatch
    pool: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def attend(self, backend: AttentionBackend, window: int | None, device: str = "cpu") -> tuple[torch.Tensor, ...]:
        """The output, and the pool afterwards; the problem is left as it was."""
        tensors = {
            n: t.to(device) for n in PagedBatch.__slots__ if isinstance(t := getattr(self.batch, n), torch.Tensor)
        }
        pool = self.pool.to(device, copy=True)
        plan = backend.plan(replace(self.batch, **tensors), pool, window=window)
        fresh = torch.cat((self.q, self.k, self.v), dim=1).to(device)  # one tensor, as a model's projection gives it
        q, k, v = fresh.split([self.q.shape[1], self.k.shape[1], self.v.shape[1]], dim=1)
        return backend.attend(q, k, v, LAYER, plan).cpu(), pool.cpu()


def make(case: Case, dtype: torch.dtype = torch.float32) -> Problem:
    """Random data in pages of shuffled order; NaN wherever no token was written."""
    random = torch.Generator().manual_seed(len(case.sequences) * 1000 + case.sequences[0][1])
    size = case.block_tokens
    needed = [-(-context // size) for _, context in case.sequences]
    order = (torch.randperm(sum(needed) + 1, generator=random) + 1).tolist()  # page 0, the tables' padding, stays NaN
    tables = torch.zeros(len(needed), max(1, *needed), dtype=torch.int32)
    pool = torch.full((len(order) + 1, case.kv_heads, LAYERS, 2, size, case.head_dim), float("nan"))
    slots, starts = [], [0]
    for row, (new, context) in enumerate(case.sequences):
        pages = [order.pop() for _ in range(needed[row])]
        if row:
            pages[: case.shared] = tables[0, : case.shared].tolist()
        tables[row, : needed[row]] = torch.tensor(pages)
        for position in range(context - new):
            tile = torch.randn(case.kv_heads, LAYERS, 2, case.head_dim, generator=random)
            pool[pages[position // size], :, :, :, position % size] = tile
        slots += [pages[at // size] * size + at % size for at in range(context - new, context)]
        starts.append(starts[-1] + new)
    rows = starts[-1] + case.padding
    q, k, v = (torch.randn(rows, n, case.head_dim, generator=random) for n in (case.heads, *(2 * [case.kv_heads])))
    batch = PagedBatch(
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor([context for _, context in case.sequences], dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.tensor(slots + [-1] * case.padding, dtype=torch.int64),
        max_query=max(new for new, _ in case.sequences),
        max_context=max(context for _, context in case.sequences),
    )
    return Problem(batch, *(tensor.to(dtype) for tensor in (pool, q, k, v)))


def compare(
    case: Case, backend: AttentionBackend, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> tuple[float, bool]:
    """Largest difference from the reference (infinite if not finite), and whether the pools are equal byte for byte."""
    problem = make(case, dtype)
    want, want_pool = problem.attend(ReferenceAttention(scale=case.scale), case.window)
    got, got_pool = problem.attend(backend, case.window, device)
    difference = (got.double() - want.double()).abs().max().item()
    same = torch.equal(got_pool.view(torch.uint8), want_pool.view(torch.uint8))
    return (float("inf") if math.isnan(difference) else difference), same


def main() -> None:
    from kvterrace.kernels import triton_attention

    triton_attention.SPLIT_KEYS = 64  # short contexts then have several splits; the interpreter is slow
    results = {name: compare(case, triton_attention.TritonAttention(scale=case.scale)) for name, case in CASES.items()}
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
