"""Eviction policies on traces: hit rates through the simulator, that is, through the classes of the store.

Published traces are read from KVTERRACE_TRACES (default: shared/traces beside the repository) and left out where they
are not; generated ones are always there. Hit rates are deterministic: no repeats. `value` is what the default policy
gains over plain LRU in points of hit rate; the rates themselves are in `of`.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from kvterrace.kvstore.placement.policies import DEFAULT_POLICY, make_policy
from kvterrace.kvstore.sim.optimum import optimal_hits
from kvterrace.kvstore.sim.outcome import Setup
from kvterrace.kvstore.sim.replay import replay
from kvterrace.kvstore.sim.trace import BadLines, Request, Trace, read_trace

from ._workloads import KINDS

TRACES = Path(os.environ.get("KVTERRACE_TRACES", Path(__file__).resolve().parents[2] / "shared/traces"))
PUBLISHED = {
    "mooncake_conversation_trace": (1000, 5859, 10_000, 30_000, 50_000, 100_000),
    "mooncake_synthetic_trace": (500, 1000, 5000, 5859, 10_000, 20_000, 30_000),
    "lmcache_agents_256B": (200, 500, 1000),
}
SHARES = (0.03, 0.1, 0.3)  # capacities for generated traces: of the different blocks of the trace
SEED = 2024  # not one of those with which the policy was developed
B = 16
Row = dict[str, object]


def _rate(trace: Trace, capacity: int, policy: str) -> float:
    return replay(trace, Setup(make_policy(policy), B, B * 1024, capacity)).hit_blocks.total() / trace.blocks


def _row(name: str, trace: Trace, capacity: int, others: Sequence[str]) -> Row:
    lru, default = (_rate(trace, capacity, policy) for policy in ("lru", DEFAULT_POLICY))
    rates = {"lru": lru, DEFAULT_POLICY: default, **{policy: _rate(trace, capacity, policy) for policy in others}}
    rates["belady"] = float(optimal_hits(trace, capacity).sum()) / trace.blocks
    of = ", ".join(f"{name} {rate:.4f}" for name, rate in rates.items())
    return {"metric": f"policy.{name}.{capacity}", "value": 100 * (default - lru), "unit": "points", "of": of}


def _generated(kind: str) -> Trace:
    prompts = KINDS[kind](np.random.default_rng(SEED))
    requests = [
        Request(float(at), B * len(prompt), 0, np.array(prompt, dtype=np.int32).tobytes(), 0, 0)
        for at, prompt in enumerate(prompts)
    ]
    unique = 1 + max(map(max, prompts))
    return Trace(kind, requests, unique, B, True, ("",), ("",), BadLines())


def _rows() -> Iterator[Row]:
    for name, capacities in PUBLISHED.items():
        path = TRACES / f"{name}.jsonl.gz"
        if path.exists():
            trace = read_trace(path)
            yield from (_row(name, trace, capacity, ("s3fifo", "gdsf")) for capacity in capacities)
    for kind in KINDS:
        trace = _generated(kind)
        different = len(set(np.frombuffer(b"".join(each.blocks for each in trace.requests), dtype=np.int32).tolist()))
        yield from (_row(kind, trace, int(share * different), ("s3fifo",)) for share in SHARES)


def run() -> list[Row]:
    """All of it: about ten minutes."""
    rows = list(_rows())
    gains = sorted(float(str(row["value"])) for row in rows)
    of = f"{len(rows)} pairs of trace and capacity"
    summary = {"worst_gain": gains[0], "median_gain": gains[len(gains) // 2], "best_gain": gains[-1]}
    return [
        *rows,
        *({"metric": f"policy.{name}", "value": value, "unit": "points", "of": of} for name, value in summary.items()),
    ]
