"""What a user who asks for priority, TTL or pins gets, and what a store full of them still does."""

import numpy as np
import pytest
from kvterrace.radix import Adaptive, EvictionPolicy, Gdsf, Lru, PrefixIndex, Retained, S3Fifo, pack_tokens

pytestmark = pytest.mark.unit

B = 2
BASES = [Lru, S3Fifo, Adaptive, lambda: Gdsf(lambda _: 1.0)]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def build(policy: EvictionPolicy, clock: Clock | None = None) -> PrefixIndex:
    return PrefixIndex(bytes(32), block_tokens=B, policy=policy, clock=clock or Clock())


def run(start: int, blocks: int) -> bytes:
    return pack_tokens(range(start, start + blocks * B))


def add(index: PrefixIndex, start: int, blocks: int = 1) -> list[int]:
    return index.insert(run(start, blocks), range(start, start + blocks)).blocks.tolist()


def order(index: PrefixIndex, n: int = 1000) -> list[int]:
    gone = []
    while len(gone) < n and (batch := index.evict(1)):
        gone += [fact.block for fact in batch]
        index.check()
    return gone


@pytest.mark.parametrize("base", BASES)
def test_what_has_expired_leaves_first_and_a_use_starts_the_ttl_anew(base) -> None:
    clock = Clock()
    index = build(Retained(base()), clock)
    used, forgotten = add(index, 0), add(index, 100)
    for n in range(20):
        add(index, 1000 * (n + 1))
    index.retain([*used, *forgotten], ttl_s=60)
    for _ in range(4):
        index.touch([*used, *forgotten])  # so that they are the last that the base would name
    clock.now += 50
    index.touch(used)
    clock.now += 9.9
    assert order(index, 1)[0] not in {*used, *forgotten}
    clock.now += 0.2
    assert order(index, 1) == forgotten
    assert order(index, 1)[0] not in used
    clock.now += 50
    assert order(index, 1) == used


@pytest.mark.parametrize("base", BASES)
def test_an_expired_pin_is_no_pin(base) -> None:
    clock = Clock()
    index = build(Retained(base(), 1.0), clock)
    pinned, usual = add(index, 0, 3), add(index, 100)
    index.retain(pinned, pinned=True, ttl_s=10)
    clock.now += 11
    assert order(index) == [*pinned[::-1], *usual]


@pytest.mark.parametrize("base", BASES)
def test_low_priority_leaves_before_everything_usual_lowest_first(base) -> None:
    index = build(Retained(base()))
    usual, low, lowest = add(index, 0, 2), add(index, 100, 2), add(index, 200, 2)
    index.retain(low, priority=30)
    index.retain(lowest, priority=0)
    for _ in range(5):
        index.touch(lowest)
    assert order(index) == [*lowest[::-1], *low[::-1], *usual[::-1]]


@pytest.mark.parametrize(("priority", "rounds"), [(50, 0), (51, 1), (63, 1), (64, 2), (100, 4)])
def test_high_priority_stays_a_bounded_number_of_rounds_longer(priority: int, rounds: int) -> None:
    """A round is as many insertions as the cache has blocks."""
    index = build(Retained(Lru()))
    kept = add(index, 0, 2)
    index.retain(kept, priority=priority)
    for n in range(8):
        add(index, 1000 * (n + 1))
    alive = 0
    for n in range(100):
        add(index, 100_000 + 1000 * n)
        index.evict(len(index) - 10)
        index.check()
        alive += len(index.match(run(0, 2))) == 2
    assert 8 * rounds <= alive <= 10 * (rounds + 1)


def test_a_use_gives_chances_back() -> None:
    index = build(Retained(Lru()))
    kept = add(index, 0)
    index.retain(kept, priority=100)
    for n in range(200):
        add(index, 1000 * (n + 1))
        index.evict(len(index) - 10)
        if n % 30 == 0:
            index.touch(kept)
    assert len(index.match(run(0, 1))) == 1


@pytest.mark.parametrize("base", BASES)
def test_pins_within_the_budget_leave_last(base) -> None:
    index = build(Retained(base(), 0.5))
    pinned = add(index, 0, 4)
    index.retain(pinned, pinned=True)
    for n in range(300):
        add(index, 1000 * (n + 1), 2)
        index.evict(len(index) - 12)
    index.check()
    assert len(index.match(run(0, 4))) == 4
    index.retain(pinned, pinned=False)
    for n in range(300, 330):
        add(index, 1000 * (n + 1), 2)
        index.evict(len(index) - 12)
    index.check()
    assert len(index.match(run(0, 4))) == 0, "a pin that was taken back still holds"


@pytest.mark.parametrize("base", BASES)
def test_pins_over_the_budget_are_ordinary_until_they_are_within_it(base) -> None:
    index = build(Retained(base(), 0.25))
    for n in range(20):
        index.retain(add(index, 1000 * n, 2), pinned=True)
    assert index.pinned == 40
    for n in range(200):
        add(index, 100_000 + 1000 * n)
        index.evict(len(index) - 40)
        index.check()
    assert index.pinned == 10


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_a_store_full_of_pins_still_evicts(base, share: float, batch: int) -> None:
    index = build(Retained(base(), share))
    for n in range(30):
        index.retain(add(index, 1000 * n, 3), pinned=True, priority=100, ttl_s=5)
    freed = 0
    while got := index.evict(batch):
        freed += len(got)
        index.check()
    assert freed == 90


def test_a_pinned_or_leased_prefix_loses_only_what_is_below_it() -> None:
    index = build(Retained(Lru(), 1.0))
    path = add(index, 0, 6)
    index.retain(path[:3], pinned=True)
    other = add(index, 1000, 2)
    index.lease(other[0])
    index.touch(path[3:])
    assert order(index) == [other[1], *path[:2:-1], *path[2::-1]]
    assert len(index) == 1


def test_more_second_chances_than_one_victim_may_cost_end_in_a_victim() -> None:
    ticks = iter(range(10**6))
    index = PrefixIndex(bytes(32), block_tokens=B, policy=Retained(Lru(), 1.0), clock=lambda: float(next(ticks)))
    for n in range(2000):
        index.retain(add(index, 10 * n), pinned=bool(n % 2), priority=50 + 50 * (n % 2 == 0))
    for _ in range(50):
        coldest = index.coldest()
        (gone,) = index.evict(1)
        assert gone.last_use == coldest
    index.check()


def test_retention_is_refused_as_a_whole() -> None:
    index = build(Retained(Lru()))
    blocks = add(index, 0, 2)
    for wrong in ({"priority": 101}, {"priority": -1}, {"ttl_s": -1.0}, {"ttl_s": float("inf")}):
        with pytest.raises(ValueError, match=r"priority|TTL"):
            index.retain(blocks, pinned=True, **wrong)
    with pytest.raises(KeyError, match="not in the index"):
        index.retain([*blocks, 99], pinned=True)
    assert index.pinned == 0
    index.retain([], pinned=True)
    index.retain(blocks, priority=np.array([1, 2]), ttl_s=np.array([3.0, 4.0]), pinned=np.array([True, False]))
    kept = index.retention(blocks)
    assert [row.tolist() for row in kept] == [[1, 2], [3.0, 4.0], [True, False]]
    assert index.pinned == 1
    index.remove(blocks[0])
    assert index.pinned == 0
    with pytest.raises(ValueError, match="pin_share"):
        Retained(Lru(), 1.5)


def test_what_nobody_retained_is_the_base_order() -> None:
    def filled(policy: EvictionPolicy) -> PrefixIndex:
        index, rng = build(policy), np.random.default_rng(5)
        for _ in range(60):
            tokens = run(1000 * int(rng.integers(6)), int(rng.integers(1, 20)))
            index.touch(index.match(tokens).blocks)
            index.insert(tokens, range(len(tokens) // (4 * B)))
        return index

    assert order(filled(Retained(Adaptive()))) == order(filled(Adaptive()))
