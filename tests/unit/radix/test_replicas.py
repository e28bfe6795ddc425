"""What another node has, too, leaves before what only this one has; unless it is used that much more."""

import numpy as np
import pytest
from kvterrace.radix import Adaptive, Gdsf, Lru, PrefixIndex, Replicated, Retained, S3Fifo, pack_tokens
from kvterrace.radix.replicas import AGEING

pytestmark = pytest.mark.unit

B = 2
BASES = [Lru, S3Fifo, Adaptive, lambda: Gdsf(lambda _: 1.0)]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=BASES)
def index(request, clock) -> PrefixIndex:
    policy = Replicated(Retained(request.param()))
    return PrefixIndex(bytes(32), block_tokens=B, policy=policy, clock=clock)


def add(index: PrefixIndex, start: int, blocks: int = 1, *, origin: int = 0) -> list[int]:
    tokens = pack_tokens(range(start, start + blocks * B))
    numbers = index.insert(tokens, range(start, start + blocks)).blocks
    if origin:
        index.retain(numbers, origin=origin)
    return numbers.tolist()


def order(index: PrefixIndex, n: int = 1000) -> list[int]:
    gone = []
    while len(gone) < n and (batch := index.evict(1)):
        gone += [fact.block for fact in batch]
        index.check()
    return gone


def test_replicas_as_old_as_last_copies_leave_before_them(index, clock):
    own, replica, later = add(index, 0, 3), add(index, 100, 3, origin=7), add(index, 200, 3)
    clock.now += 1
    assert order(index, 3) == replica[::-1]
    assert set(order(index)) == {*own, *later}


def test_a_replica_counts_as_idle_so_many_times_longer(index, clock):
    own = add(index, 0)
    clock.now += 10 * AGEING
    replica = add(index, 100, origin=1)
    clock.now += 9
    assert order(index, 1) == own, "9 s count as 72, and 89 s are more"
    own = add(index, 200)
    assert order(index, 1) == replica
    assert order(index) == own


def test_what_is_read_all_the_time_is_not_evicted_because_all_else_is_a_last_copy(index, clock):
    for n in range(20):
        add(index, 1000 * (n + 1))
    replica = add(index, 0, 4, origin=1)
    for _ in range(60):
        clock.now += 1
        index.touch(replica)
    assert not {*order(index, 10)} & {*replica}


def test_once_its_origin_is_gone_it_is_a_last_copy(index, clock):
    own = add(index, 0, 2)
    clock.now += 1
    replica = add(index, 100, 2, origin=3)
    clock.now += 1
    assert index.coldest() < clock.now - 1, "it says how much room for it is worth, to whom it competes with"
    index.retain(replica, origin=0)
    index.check()
    assert order(index, 2) == own[::-1]


def test_what_has_expired_or_is_of_low_priority_still_goes_first(index, clock):
    expired, low, replica = add(index, 0), add(index, 100), add(index, 200, origin=1)
    index.retain(expired, ttl_s=5.0)
    index.retain(low, priority=10)
    clock.now += 6
    assert order(index) == [*expired, *low, *replica]


def test_a_replica_that_is_pinned_or_of_high_priority_has_no_less_of_a_claim(index, clock):
    pinned, high = add(index, 0, origin=1), add(index, 100, origin=1)
    own = [add(index, 1000 * (n + 1))[0] for n in range(30)]
    index.retain(pinned, pinned=True)
    index.retain(high, priority=100)
    clock.now += 1
    for block in own:
        index.touch([block])
    clock.now += 1
    gone = order(index, 10)
    assert pinned[0] not in gone


def test_a_path_leaves_from_its_end_whatever_is_a_replica(index, clock):
    tokens = pack_tokens(range(8 * B))
    blocks = index.insert(tokens, range(8)).blocks
    index.retain(blocks[:4], origin=2)  # its head came from elsewhere, its end was computed here
    clock.now += 1
    assert order(index) == blocks.tolist()[::-1]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_nothing_leaves_that_a_colder_replica_could(seed):
    rng, clock = np.random.default_rng(seed), Clock()
    policy = Replicated(Retained(BASES[seed % len(BASES)]()))
    index = PrefixIndex(bytes(32), block_tokens=B, policy=policy, clock=clock)
    live: dict[int, int] = {}  # block -> origin
    leased: list[int] = []
    for step in range(100):
        clock.now += float(rng.exponential(2.0))
        match rng.integers(7):
            case 0 | 1:
                origin = int(rng.integers(3))
                added = add(index, 10_000 * step, int(rng.integers(1, 4)), origin=origin)
                live.update(dict.fromkeys(added, origin))
            case 2 if live:
                index.touch(index.path(int(rng.choice(list(live)))))
            case 3 if live:
                index.lease(block := int(rng.choice(list(live))))
                leased.append(block)
            case 4 if leased:
                index.release(leased.pop())
            case 5 if live:
                gone = int(rng.integers(1, 3))
                stale = [block for block, origin in live.items() if origin == gone]
                index.retain(stale, origin=0)
                live.update(dict.fromkeys(stale, 0))
            case _:
                tips = [block for block in live if index.is_tip(block) and not index.leases(block)]
                use = index.col("last_use")
                idle = {block: (clock.now - use[block]) * (AGEING if live[block] else 1) for block in tips}
                colder = max((idle[block] for block in tips if live[block]), default=-1.0)
                for fact in index.evict(1):
                    assert live.pop(fact.block) or idle[fact.block] >= colder
        index.check()
