"""The simulator: block look-ups a second, inserts and evictions included, by policy and with NVMe below.

Workload: 4,000 requests of conversations that grow by one to twenty blocks a turn, a third of them new, over a store of
a tenth of the blocks asked for; the published conversation trace too, where it lies beside the repository. Processor
time of the one thread at work, interleaved, median of the repeats.
"""

import random
import statistics
import time
from pathlib import Path

from kvterrace.kvstore.placement.policies import DEFAULT_POLICY, make_policy
from kvterrace.kvstore.sim.optimum import optimal_hits
from kvterrace.kvstore.sim.outcome import Setup
from kvterrace.kvstore.sim.replay import replay
from kvterrace.kvstore.sim.trace import BadLines, Request, Trace, read_trace
from kvterrace.radix import pack_tokens

REPEATS = 5
PUBLISHED = Path(__file__).resolve().parents[2] / "shared/traces/mooncake_conversation_trace.jsonl.gz"
Row = dict[str, object]


def made_up(seed: int = 7, requests: int = 4000) -> Trace:
    """A trace of conversations; blocks are numbered in the order of their first use, as the reader does."""
    rng, talks, rows, fresh = random.Random(seed), list[list[int]](), list[Request](), 0
    for number in range(requests):
        ids = list(rng.choice(talks[-200:])) if talks and rng.random() < 0.67 else []
        grown = rng.randrange(1, 21)
        ids += range(fresh, fresh + grown)
        fresh += grown
        talks.append(ids)
        rows.append(Request(number * 0.3, 512 * len(ids), 1, pack_tokens(ids), 0, 0))
    return Trace("made up", rows, fresh, 512, True, ("",), ("",), BadLines())


def _setup(blocks: int, policy: str, nvme: int) -> Setup:
    return Setup(make_policy(policy), block_tokens=512, block_bytes=64 << 20, dram_blocks=blocks, nvme_blocks=nvme)


def _lookups(trace: Trace, blocks: int, policies: tuple[str, ...]) -> list[Row]:
    cases = [(policy, nvme) for nvme in (0, 3 * blocks) for policy in policies]
    taken: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(REPEATS):
        for policy, nvme in cases:
            began = time.thread_time()
            replay(trace, _setup(blocks, policy, nvme))
            taken[policy, nvme].append(time.thread_time() - began)
    rows = list[Row]()
    for (policy, nvme), seconds in taken.items():
        rate = trace.blocks / statistics.median(seconds)
        below = f", NVMe of {nvme:,}" if nvme else ""
        of = f"{policy}, {trace.name}, DRAM of {blocks:,} blocks{below}"
        name = "sim.lookups_per_s" + ("_nvme" if nvme else "")
        rows.append({"metric": name, "value": rate, "unit": "blocks/s", "of": of})
    return rows


def run() -> list[Row]:
    """All of it, about two minutes."""
    trace = made_up()
    rows = _lookups(trace, trace.blocks // 40, (DEFAULT_POLICY, "lru"))
    if PUBLISHED.exists():
        rows += _lookups(read_trace(PUBLISHED), 5859, (DEFAULT_POLICY,))
    began = time.thread_time()
    optimal_hits(trace, trace.blocks // 40)
    rate = trace.blocks / (time.thread_time() - began)
    rows.append({"metric": "sim.hindsight_per_s", "value": rate, "unit": "blocks/s", "of": trace.name})
    return rows
