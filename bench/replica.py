"""A prefix that another replica prefilled: time to first token against computing it, and against the physical limit.

Replica A computes a prompt of about 2,000 tokens and saves it through a sidecar; B, which never saw it, is asked the
same prefix with another tail. The limit is what nobody can avoid: one forward pass over the uncached tail, and one
memcpy of the cached bytes.
"""

import statistics
import time

import numpy as np
import torch
from kvterrace.engine.model import LoadedModel
from kvterrace.kernels import PagedBatch, make_backend

from ._common import Engine, demo_model, sidecar

PREFIX_TOKENS, TAIL_TOKENS = 2_000, 24
BLOCK_TOKENS = 16
REPEATS = 9
COLD_REPEATS = 5


def run() -> list[dict[str, object]]:
    loaded = demo_model()
    random = np.random.default_rng(2)
    prefix = random.integers(100, 40_000, PREFIX_TOKENS).tolist()
    limit = Limit(loaded)
    cold, warm, floor = [], [], []
    with sidecar("1GiB") as address, Engine(loaded, "sidecar", address) as a, Engine(loaded, "sidecar", address) as b:
        for _ in range(COLD_REPEATS):
            cold.append(a.run([random.integers(100, 40_000, PREFIX_TOKENS + TAIL_TOKENS).tolist()], 1)[0])
        a.run([prefix], 1)
        a.settle()
        for repeat in range(-1, REPEATS):
            b.loop.clear_hbm()
            tail = random.integers(100, 40_000, TAIL_TOKENS).tolist()
            ttft_s, _, ends = b.run([prefix + tail], 1)
            receipt = ends[0].receipt
            if receipt is None or receipt.tokens["dram"] < PREFIX_TOKENS - BLOCK_TOKENS:
                raise RuntimeError(f"the prefix was not found: {receipt}")
            floor_s = limit.measure(tail)
            if repeat >= 0:
                warm.append(ttft_s)
                floor.append(floor_s)
    ttft_s = statistics.median(warm)
    ratio = statistics.median(a / b for a, b in zip(warm, floor, strict=True))
    of_limit = f"forward over {TAIL_TOKENS} tokens + memcpy of the prefix, {statistics.median(floor) * 1e3:.0f} ms"
    return [
        {"metric": "replica.cold_ttft_s", "value": statistics.median(cold), "unit": "s", "of": ""},
        {"metric": "replica.other_ttft_s", "value": ttft_s, "unit": "s", "of": ""},
        {"metric": "replica.of_cold", "value": ttft_s / statistics.median(cold), "unit": "ratio", "of": "cold TTFT"},
        {"metric": "replica.of_limit", "value": ratio, "unit": "ratio", "of": of_limit},
    ]


class Limit:
    """The unavoidable work of one such request, on a pool of its own."""

    def __init__(self, loaded: LoadedModel) -> None:
        config = loaded.config
        self._model = loaded.model
        self._context = PREFIX_TOKENS + TAIL_TOKENS
        pages = -(-self._context // BLOCK_TOKENS)
        self._table = torch.arange(pages, dtype=torch.int32)[None]
        self._pool = torch.randn(pages, config.kv_heads, config.layers, 2, BLOCK_TOKENS, config.head_dim)
        self._backend = make_backend("cpu")
        self._cached = torch.randn_like(self._pool[: PREFIX_TOKENS // BLOCK_TOKENS])

    def measure(self, tail: list[int]) -> float:
        """Seconds for the memcpy and the forward pass."""
        positions = torch.arange(PREFIX_TOKENS, self._context)
        began = time.perf_counter()
        self._pool[: len(self._cached)].copy_(self._cached)
        batch = PagedBatch(
            query_starts=torch.tensor([0, len(tail)], dtype=torch.int32),
            context_lens=torch.tensor([self._context], dtype=torch.int32),
            block_tables=self._table,
            slot_mapping=self._table[0].long()[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS,
            max_query=len(tail),
            max_context=self._context,
        )
        plan = self._backend.plan(batch, self._pool)
        rows = torch.tensor([len(tail) - 1])
        self._model.forward(torch.tensor(tail), positions, plan, rows, self._backend).argmax(-1)
        return time.perf_counter() - began
