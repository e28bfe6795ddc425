"""The ceilings: right by brute force on small traces, and as published on the real ones."""

import functools
import random
from pathlib import Path

import numpy as np
import pytest
from kvterrace.kvstore.sim.optimum import infinite_hits, optimal_hits
from kvterrace.kvstore.sim.replay import replay
from kvterrace.kvstore.sim.trace import read_trace

pytestmark = pytest.mark.unit

TRACES = Path(__file__).parents[4] / "shared" / "traces"
YARDSTICKS = {
    "mooncake_conversation_trace": (0.3664, {1000: 0.1907, 5859: 0.3532}),
    "mooncake_synthetic_trace": (0.6396, {500: 0.1992, 5000: 0.5263}),
    "lmcache_agents_256B": (0.8990, {200: 0.7732, 500: 0.8958, 1000: 0.8990}),
}
LRU = {
    "mooncake_conversation_trace": {5859: 0.1361},
    "mooncake_synthetic_trace": {5859: 0.3094},
    "lmcache_agents_256B": {200: 0.7498, 500: 0.8955, 1000: 0.8985},
}


def small(seed: int) -> list[list[int]]:
    """Prompts from a small tree, as chained ids: a node's children are named after it."""
    rng = random.Random(seed)
    return [
        list(np.cumsum([rng.randrange(1, 3) * 10**depth for depth in range(rng.randrange(1, 4))])) for _ in range(7)
    ]


def best_by_trying_everything(prompts: list[list[int]], capacity: int) -> int:
    """Hits of the best choice of what to keep after each request, among all prefix-closed sets of cached blocks."""

    def closed(kept: frozenset[tuple[int, ...]]) -> bool:
        return all(len(path) == 1 or path[:-1] in kept for path in kept)

    @functools.cache
    def best(at: int, kept: frozenset[tuple[int, ...]]) -> int:
        if at == len(prompts):
            return 0
        paths = [tuple(prompts[at][: i + 1]) for i in range(len(prompts[at]))]
        hits = sum(path in kept for path in paths)
        known = sorted(kept | set(paths))
        keeps = (
            frozenset(path for bit, path in enumerate(known) if mask >> bit & 1)
            for mask in range(1 << len(known))
            if mask.bit_count() <= capacity
        )
        return hits + max(best(at + 1, keep) for keep in keeps if closed(keep))

    return best(0, frozenset())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity", [0, 1, 2, 3])
def test_hindsight_finds_what_trying_everything_finds(trace_of, rows_of, seed, capacity):
    prompts = [[int(each) for each in ids] for ids in small(seed)]
    trace = trace_of([rows_of.row(ids) for ids in prompts])
    assert int(optimal_hits(trace, capacity).sum()) == best_by_trying_everything(prompts, capacity)


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_no_policy_beats_hindsight_and_hindsight_not_the_infinite_cache(trace_of, rows_of, setup_of, policy):
    trace = trace_of(rows_of.conversations(5, 300))
    for capacity in (10, 40, 160):
        reached = replay(trace, setup_of(capacity, policy=policy)).hit_blocks.total()
        assert reached <= optimal_hits(trace, capacity).sum() <= infinite_hits(trace).sum()
    assert optimal_hits(trace, trace.unique).tolist() == infinite_hits(trace).tolist()


def test_prompts_of_no_block_hit_nothing(trace_of, rows_of):
    trace = trace_of([rows_of.row([]), rows_of.row([1]), rows_of.row([]), rows_of.row([1])])
    assert optimal_hits(trace, 1).tolist() == infinite_hits(trace).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("name", YARDSTICKS)
def test_published_traces_give_the_published_figures(name, setup_of):
    path = TRACES / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip("the traces are not on this machine")
    trace = read_trace(path)
    infinite, best = YARDSTICKS[name]
    assert infinite_hits(trace).sum() / trace.blocks == pytest.approx(infinite, abs=6e-5)
    for capacity, rate in best.items():
        assert optimal_hits(trace, capacity).sum() / trace.blocks == pytest.approx(rate, abs=6e-5)
    for capacity, rate in LRU[name].items():
        assert replay(trace, setup_of(capacity)).hit_rate == pytest.approx(rate, abs=6e-5)
