"""Who gives way: the coldest of all namespaces, whole slabs between sizes, never a leased block, the cap holds."""

import pytest
from kvterrace.kvstore.placement.policies import POLICY_NAMES, make_policy

pytestmark = pytest.mark.unit


def test_the_coldest_namespace_gives_first(bench):
    b = bench(12)
    warm, cold, new = (b.open(tenant_salt=salt) for salt in (b"warm", b"cold", b"new"))
    b.save(warm, b.prompt(1, 6))
    b.now = 1
    b.save(cold, b.prompt(1, 6))
    b.now = 2
    warm.release(b.acquire(warm, b.prompt(1, 6)).lease)
    b.now = 3
    b.save(new, b.prompt(1, 5))
    assert warm.lookup(b.prompt(1, 6)).tiers == {"dram": 24}
    assert cold.lookup(b.prompt(1, 6)).tiers == {"dram": 4}, "tails first"


def test_eviction_goes_across_namespaces_in_order_of_use(bench):
    b = bench(8)
    sessions = [b.open(tenant_salt=bytes([number])) for number in range(4)]
    for turn in range(2):
        for session in sessions:
            b.now += 1
            b.save(session, b.prompt(turn, 1))
    b.now += 1
    b.save(sessions[0], b.prompt(9, 6))
    left = [[turn for turn in range(2) if session.lookup(b.prompt(turn, 1)).tiers] for session in sessions]
    assert left == [[], [], [1], [1]]


def test_an_old_slab_of_another_size_is_taken_back(bench, layouts):
    b = bench(32, slab_bytes=8 * 4096)
    small, large = b.open(), b.open(weights=b"weights-L", layout=layouts[1])
    for name in range(4):
        b.now += 1
        b.save(small, b.prompt(name, 8))
    b.now += 1
    assert b.save(large, b.prompt(1, 4)) == 4, "a size that has nothing yet gets in"
    assert small.lookup(b.prompt(0, 8)).tiers == {}, "the coldest slab went"
    assert all(small.lookup(b.prompt(name, 8)).tiers == {"dram": 32} for name in (1, 2, 3))
    assert b.counters.evictions == {"slab": 8}
    b.now += 1
    small.release(b.acquire(small, b.prompt(1, 8)).lease)
    b.now += 1
    assert b.save(large, b.prompt(2, 4)) == 4
    assert small.lookup(b.prompt(1, 8)).tiers == {"dram": 32}
    assert small.lookup(b.prompt(2, 8)).tiers == {}
    assert large.lookup(b.prompt(1, 4)).tiers == {"dram": 16}


def test_a_size_whose_own_blocks_are_older_evicts_its_own(bench, layouts):
    b = bench(16, slab_bytes=8 * 4096)
    small, large = b.open(), b.open(weights=b"weights-L", layout=layouts[1])
    b.save(large, b.prompt(1, 4))
    b.now = 1
    b.save(small, b.prompt(1, 8))
    b.now = 2
    b.save(large, b.prompt(2, 4))
    assert small.lookup(b.prompt(1, 8)).tiers == {"dram": 32}
    assert large.lookup(b.prompt(1, 4)).tiers == {}


def test_slabs_with_a_lease_stay(bench, layouts):
    b = bench(16, slab_bytes=8 * 4096)
    small, large = b.open(), b.open(weights=b"weights-L", layout=layouts[1])
    b.save(small, b.prompt(1, 8))
    b.save(small, b.prompt(2, 7))
    reading = b.acquire(small, b.prompt(1, 3))
    writing = small.reserve(b.prompt(3, 1), start=0, count=1)
    assert writing.lease
    assert large.reserve(b.prompt(1, 1), start=0, count=1).reason == "full"
    assert b.counters.evictions == {}
    small.abort(writing.lease)
    b.now += 10
    assert b.save(large, b.prompt(1, 4)) == 4
    assert small.lookup(b.prompt(1, 8)).tiers == {"dram": 32}
    small.release(reading.lease)


@pytest.mark.parametrize("options", [{"policy": make_policy(name)} for name in POLICY_NAMES], ids=POLICY_NAMES)
def test_the_cap_holds_whatever_comes(bench, layouts, options):
    b = bench(40, slab_bytes=8 * 4096, **options)
    small, large = b.open(), b.open(weights=b"weights-L", layout=layouts[1])
    for name in range(60):
        b.now += 1
        b.save(small if name % 3 else large, b.prompt(name, 1 + name % 7))
        assert b.dram.used_bytes <= b.dram.capacity_bytes
        b.store.check()
    assert small.lookup(b.prompt(59, 4)).tiers == {"dram": 16}, "it goes on storing"
