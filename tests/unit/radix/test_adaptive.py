"""The default policy: better than LRU where earlier hits tell something, LRU where they do not."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kvterrace.radix import Adaptive, EvictionPolicy, Gdsf, Lru, PrefixIndex, Retained, pack_tokens

pytestmark = pytest.mark.unit

Prompts = list[list[int]]
TRACES = Path(__file__).parents[4] / "shared" / "traces"


class Ids:
    def __init__(self) -> None:
        self.next = 1

    def new(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count, self.next))


def popular(rng: np.random.Generator, ids: Ids, requests: int) -> Prompts:
    documents = [ids.new(int(rng.integers(4, 12))) for _ in range(150)]
    weights = 1 / np.arange(1, 151) ** 0.9
    return [documents[n] + ids.new(1) for n in rng.choice(150, requests, p=weights / weights.sum())]


def loop(rng: np.random.Generator, ids: Ids, requests: int) -> Prompts:
    documents = [ids.new(8) for _ in range(40)]
    return [documents[n % 40] + ids.new(1) for n in range(requests)]


def misleading(rng: np.random.Generator, ids: Ids, requests: int) -> Prompts:
    """What is used five times is dead, what was used once comes back after about 250 other blocks."""
    out, later = list[list[int]](), list[tuple[int, list[int]]]()
    while len(out) < requests:
        out += [ids.new(6)] * 5
        slow = [ids.new(6) for _ in range(3)]
        out += slow
        later += [(len(out) + 60, each) for each in slow]
        while later and later[0][0] <= len(out):
            out.append(later.pop(0)[1])
    return out


def phases(rng: np.random.Generator, ids: Ids, requests: int) -> Prompts:
    return [prompt for _ in range(requests // 250) for prompt in popular(rng, ids, 250)]


def turns(rng: np.random.Generator, ids: Ids, requests: int) -> Prompts:
    return [prompt for _ in range(requests // 1000) for make in (popular, misleading) for prompt in make(rng, ids, 500)]


def hit_share(prompts: Prompts, capacity: int, policy: EvictionPolicy) -> float:
    index, hits = PrefixIndex(bytes(32), block_tokens=1, policy=policy, clock=lambda: 0.0), 0
    for prompt in prompts:
        tokens = pack_tokens(prompt)
        found = index.match(tokens)
        hits += len(found)
        index.touch(found.blocks)
        if found:
            index.lease(found.last)
        index.evict(len(index) + len(prompt) - len(found) - capacity)
        if found:
            index.release(found.last)
        index.insert(tokens, range(len(prompt)))
    index.check()
    return hits / sum(map(len, prompts))


@pytest.mark.parametrize("make", [popular, loop, misleading, phases])
@pytest.mark.parametrize("capacity", [60, 250, 900])
def test_it_is_never_clearly_worse_than_lru(make: Callable[..., Prompts], capacity: int) -> None:
    prompts = make(np.random.default_rng(17), Ids(), 1500)
    assert hit_share(prompts, capacity, Adaptive()) >= hit_share(prompts, capacity, Lru()) - 0.002


@pytest.mark.parametrize(("make", "capacity", "gain"), [(popular, 250, 0.03), (loop, 330, 0.3)])
def test_where_earlier_hits_tell_something_it_is_better(
    make: Callable[..., Prompts], capacity: int, gain: float
) -> None:
    prompts = make(np.random.default_rng(18), Ids(), 1500)
    assert hit_share(prompts, capacity, Adaptive()) >= hit_share(prompts, capacity, Lru()) + gain


@pytest.mark.parametrize("capacity", [100, 250, 600])
def test_traffic_that_changes_as_fast_as_the_judge_learns_costs_little(capacity: int) -> None:
    prompts = turns(np.random.default_rng(18), Ids(), 2000)
    assert hit_share(prompts, capacity, Adaptive()) >= hit_share(prompts, capacity, Lru()) - 0.005


@pytest.mark.parametrize(
    ("name", "capacity", "lru", "gain"),
    [
        ("mooncake_conversation_trace", 5859, 0.1361, 0.02),
        ("lmcache_agents_256B", 200, 0.7498, -0.002),
        ("lmcache_agents_256B", 500, 0.8955, -0.002),
        ("lmcache_agents_256B", 1000, 0.8985, -0.002),
    ],
)
def test_published_traces(name: str, capacity: int, lru: float, gain: float) -> None:
    """All capacities, and all traces: `make bench ONLY=policy`."""
    path = TRACES / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip("the traces are not on this machine")
    with gzip.open(path, "rt") as lines:
        prompts: Prompts = [json.loads(line)["hash_ids"][:capacity] for line in lines]
    assert hit_share(prompts, capacity, Retained(Adaptive())) >= lru + gain


def test_where_they_mislead_it_is_lru_and_comes_back_to_it() -> None:
    ids, rng, policy = Ids(), np.random.default_rng(19), Adaptive()
    prompts = misleading(rng, ids, 1000)
    assert hit_share(prompts, 250, policy) == hit_share(prompts, 250, Lru())
    assert policy.credit == 0
    policy = Adaptive()
    hit_share(popular(rng, ids, 700), 250, policy)
    assert policy.credit > 0
    policy = Adaptive()
    hit_share(popular(rng, ids, 700) + misleading(rng, ids, 1500), 250, policy)
    assert policy.credit == 0


def test_hits_are_remembered_of_blocks_that_left_but_only_on_the_same_path() -> None:
    policy = Adaptive()
    index = PrefixIndex(bytes(32), block_tokens=1, policy=policy)
    path = pack_tokens([1, 2, 3])
    for _ in range(3):
        index.touch(index.insert(path, range(3)).blocks)
    index.evict(3)
    back = index.insert(path, range(3)).blocks
    assert (index.col("adaptive.state")[back] & 3).tolist() == [3, 3, 3]
    for _ in range(3):
        index.evict(1)
    back = index.insert(path, range(3)).blocks
    assert (index.col("adaptive.state")[back] & 3).tolist() == [3, 3, 3], "one by one"
    index.evict(3)
    other = index.insert(pack_tokens([9, 2, 3]), range(3)).blocks
    assert (index.col("adaptive.state")[other] & 3).tolist() == [0, 0, 0]
    pictured = index.insert(path, range(3), extras={0: b"picture"}).blocks
    assert (index.col("adaptive.state")[pictured] & 3).tolist() == [0, 0, 0]


def test_what_is_remembered_is_bounded_by_the_cache_not_by_its_past() -> None:
    policy = Adaptive()
    index = PrefixIndex(bytes(32), block_tokens=1, policy=policy)
    for n in range(300):
        index.insert(pack_tokens(range(1000 * n, 1000 * n + 200)), range(200))
        index.evict(len(index) - 1000)
    assert len(policy._memory._places) <= 8 * 1200


def test_gdsf_keeps_what_is_dear_to_compute_and_ages_what_was_frequent() -> None:
    index = PrefixIndex(bytes(32), block_tokens=1, policy=Gdsf(lambda ordinal: 1.0 + ordinal))
    deep = index.insert(pack_tokens(range(10)), range(10)).blocks.tolist()
    flat = [int(index.insert(pack_tokens([100 + n]), [n]).blocks[0]) for n in range(5)]
    assert [fact.block for fact in index.evict(5)] == flat, "a first block costs a tenth of a tenth"
    index.touch(deep)
    for n in range(100):
        index.insert(pack_tokens([1000 + n]), [n])
        index.evict(len(index) - 12)
    assert len(index.match(pack_tokens(range(10)))) < 10, "what was frequent once stays for ever"
    index.check()


def test_gdsf_is_frequency_while_the_cost_is_unknown_and_learns_it_later() -> None:
    cost = [0.0]
    index = PrefixIndex(bytes(32), block_tokens=1, policy=Gdsf(lambda ordinal: cost[0] * (1 + ordinal)))
    often = index.insert(pack_tokens([1]), [1]).blocks
    deep = index.insert(pack_tokens([2, 3, 4]), range(3)).blocks.tolist()
    index.touch(often)
    assert [fact.block for fact in index.evict(4)] == [*deep[::-1], int(often[0])]
    cost[0] = 1e-3
    for n in range(42):  # enough blocks placed that it asks again
        index.insert(pack_tokens(range(10_000 + 100 * n, 10_100 + 100 * n)), range(100))
    index.evict(4200)
    often = index.insert(pack_tokens([1]), [1]).blocks
    deep = index.insert(pack_tokens([2, 3, 4]), range(3)).blocks.tolist()
    index.touch(often)
    assert [fact.block for fact in index.evict(2)] == [int(often[0]), deep[2]]


@pytest.mark.parametrize("cost", [lambda _: -1.0, float, lambda _: 1e300])
def test_gdsf_survives_costs_that_are_none(cost: Callable[[int], float]) -> None:
    index = PrefixIndex(bytes(32), block_tokens=1, policy=Gdsf(cost))
    for n in range(50):
        index.touch(index.insert(pack_tokens(range(10 * n, 10 * n + 7)), range(7)).blocks)
        index.evict(len(index) - 100)
    index.check()
