"""What each tenant may use of DRAM, and who gives way: never beyond a quota, never below a floor for others."""

import asyncio

import pytest
from kvterrace.kvstore.errors import ConfigError, SessionRefused
from kvterrace.kvstore.placement.policies import POLICY_NAMES, make_policy

pytestmark = pytest.mark.unit


def test_a_tenant_at_its_quota_makes_room_among_its_own(bench):
    b = bench(32, {"a": (8, 0), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(theirs, b.prompt(1, 6))
    b.save(ours, b.prompt(1, 6))
    b.save(ours, b.prompt(2, 6))
    assert (b.pages("a"), b.has(ours, b.prompt(2, 6)), b.has(ours, b.prompt(1, 6))) == (8, 6, 2)
    assert b.has(theirs, b.prompt(1, 6)) == 6, "though it was colder"
    assert b.counters.evictions == {"quota": 4}
    assert b.acquire(ours, b.prompt(1, 6)).reason == "evicted"


def test_what_a_quota_has_no_room_for_is_refused_with_that_reason(bench):
    b = bench(32, {"a": (4, 0)})
    session = b.open("a")
    given = b.reserve(session, b.prompt(1, 6))
    assert (len(given.blocks), given.reason) == (4, "quota")
    more = b.reserve(session, b.prompt(2, 3))
    assert (more.lease, more.reason) == (0, "quota"), "what is being written counts"
    session.commit(given.lease, b.fill(session, b.prompt(1, 6), given))
    assert b.counters.dropped_saves == {"quota": 5}
    reading = b.acquire(session, b.prompt(1, 3))
    assert b.save(session, b.prompt(2, 3)) == 1, "leased blocks do not give way"
    session.release(reading.lease)
    assert b.save(session, b.prompt(2, 3)) == 2


def test_a_quota_counts_all_namespaces_and_sizes_of_a_tenant(bench, large):
    b = bench(64, {"a": (8, 0)}, slab_bytes=8 * 4096)
    small, big, other = b.open("a"), b.open("a", weights=b"weights-L", layout=large), b.open("a", weights=b"weights-1")
    b.save(small, b.prompt(1, 4))
    b.save(other, b.prompt(1, 4))
    assert b.pages("a") == 8
    assert b.save(big, b.prompt(1, 3)) == 3
    assert b.pages("a") == 8
    assert (b.has(small, b.prompt(1, 4)), b.has(other, b.prompt(1, 4))) == (0, 2), "the coldest went"


def test_within_its_quota_a_tenant_takes_the_coldest_of_all(bench):
    b = bench(12, {"a": (8, 0), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(theirs, b.prompt(1, 10))
    assert b.save(ours, b.prompt(1, 6)) == 6
    assert b.has(theirs, b.prompt(1, 10)) == 6


def test_nobody_is_taken_below_its_floor_by_others(bench):
    b = bench(12, {"a": (None, 4), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 6))
    for name in range(5):
        b.save(theirs, b.prompt(name, 5))
    assert b.has(ours, b.prompt(1, 6)) == 4
    assert b.save(theirs, b.prompt(9, 12)) == 8, "the floor is not to be had, whatever is asked for"
    b.save(ours, b.prompt(2, 12))
    assert b.pages("a") == 12, "its own may go for its own"
    assert b.has(ours, b.prompt(2, 12)) == 12


def test_a_tenant_gets_its_floor_back(bench):
    b = bench(12, {"a": (None, 4), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(theirs, b.prompt(1, 12))
    assert b.save(ours, b.prompt(1, 4)) == 4


def test_who_is_above_a_lowered_quota_gives_first_and_down_to_it_only(bench):
    b = bench(16, {"a": (None, 0), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(theirs, b.prompt(1, 6))
    b.save(ours, b.prompt(1, 10))
    b.store.tenancy.limit("a", dram_quota=6 * 4096)
    assert (b.pages("a"), b.counters.evictions) == (10, {}), "as long as nobody needs the room, it stays"
    b.save(theirs, b.prompt(2, 3))
    assert (b.has(ours, b.prompt(1, 10)), b.has(theirs, b.prompt(1, 6))) == (7, 6), "the colder ones stay"
    b.save(theirs, b.prompt(3, 3))
    assert (b.has(ours, b.prompt(1, 10)), b.has(theirs, b.prompt(1, 6))) == (6, 4)
    assert b.counters.evictions == {"quota": 4, "capacity": 2}


def test_leases_keep_what_is_above_a_lowered_quota(bench):
    b = bench(16, {"a": (None, 0)})
    ours, theirs = b.open("a"), b.open()
    b.save(ours, b.prompt(1, 10))
    reading = b.acquire(ours, b.prompt(1, 10))
    b.store.tenancy.limit("a", dram_quota=2 * 4096)
    assert b.save(theirs, b.prompt(1, 12)) == 6
    assert b.reserve(ours, b.prompt(2, 1)).reason == "quota"
    ours.release(reading.lease)
    assert b.save(theirs, b.prompt(2, 8)) == 8
    assert b.has(ours, b.prompt(1, 10)) == 2


def test_a_slab_of_another_size_goes_only_if_nobody_is_below_its_floor_then(bench, large):
    b = bench(32, {"a": (None, 20), "b": (None, 0)}, slab_bytes=8 * 4096)
    ours, theirs = b.open("a"), b.open("b", weights=b"weights-L", layout=large)
    for name in range(4):
        b.save(ours, b.prompt(name, 8))
    assert b.save(theirs, b.prompt(1, 4)) == 4, "24 pages are left"
    assert b.save(theirs, b.prompt(2, 8)) == 4, "20 are, if one more slab went they were 16"
    assert b.pages("a") == 24
    assert b.counters.evictions["slab"] == 8


def test_a_slab_with_blocks_that_others_hang_below_counts_with_all_of_these(bench, large):
    b = bench(32, {"a": (None, 12), "b": (None, 0)}, slab_bytes=8 * 4096)
    ours, theirs = b.open("a"), b.open("b", weights=b"weights-L", layout=large)
    b.save(ours, b.prompt(1, 32))
    assert b.save(theirs, b.prompt(1, 4)) == 4
    assert b.pages("a") == 16, "the two slabs above the one that went have more below them than may go"


def test_a_slab_of_who_is_above_its_quota_goes_before_anybody_elses_block(bench, large):
    b = bench(24, {"a": (None, 0), "b": (None, 0)}, slab_bytes=8 * 4096)
    theirs, ours = b.open("b", weights=b"weights-L", layout=large), b.open("a")
    b.save(theirs, b.prompt(1, 4))
    for name in (1, 2):
        b.save(ours, b.prompt(name, 8))
    b.store.tenancy.limit("a", dram_quota=8 * 4096)
    assert b.save(theirs, b.prompt(2, 4)) == 4
    assert b.has(theirs, b.prompt(1, 4)) == 4, "colder, but within its quota"
    assert b.pages("a") == 8


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"dram_quota": 4096, "dram_floor": 8192}, "dram_quota"),
        ({"dram_floor": 17 * 4096}, "dram_floor"),
        ({"dram_floor": 13 * 4096}, "dram_floor"),
        ({"nvme_floor": 4096}, "nvme_floor"),
    ],
)
def test_limits_that_do_not_fit_are_refused_and_change_nothing(bench, wish, said):
    b = bench(16, {"a": (8, 2), "b": (None, 4)})
    before = b.tenants.named("a").limits
    with pytest.raises(ConfigError, match=said):
        b.store.tenancy.limit("a", **wish)
    assert b.tenants.named("a").limits == before
    for name in ("c", ""):
        with pytest.raises((SessionRefused, ConfigError)):
            b.store.tenancy.limit(name, dram_quota=4096)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_quotas_and_floors_hold_under_every_policy(bench, large, policy):
    limits = {"a": (10, 4), "b": (16, 6), "c": (None, 0)}
    b = bench(32, limits, slab_bytes=8 * 4096, policy=make_policy(policy))
    sessions = [(name, b.open(name)) for name in limits]
    sessions.append(("c", b.open("c", weights=b"weights-L", layout=large)))
    for turn in range(80):
        name, session = sessions[turn * 7 % 4]
        before = {each: b.pages(each) for each in limits}
        b.save(session, b.prompt(turn % 9, 1 + turn % 6))
        if turn % 3 == 0:
            got = b.acquire(session, b.prompt((turn + 3) % 9, 3))
            session.release(got.lease)
        for each, (quota, floor) in limits.items():
            assert quota is None or b.pages(each) <= quota
            assert each == name or b.pages(each) >= min(floor, before[each])
    b.store.check()


def test_what_tenants_use_is_in_the_stats(bench):
    b = bench(16, {"a": (8, 2), "b": (None, 0)})
    session = b.open("a")
    b.save(session, b.prompt(1, 3))
    session.release(b.acquire(session, b.prompt(1, 4)).lease)
    stats = {each.name: each for each in b.store.stats().tenants}
    assert set(stats) == {"a", "b", ""}
    assert (stats["a"].used, stats["a"].hit_tokens, stats["a"].miss_tokens) == ({"dram": 3 * 4096, "nvme": 0}, 12, 4)
    assert (stats["a"].limits.dram_quota, stats["a"].limits.dram_floor, stats["a"].sessions) == (8 * 4096, 2 * 4096, 1)
    session.close()
    asyncio.run(b.store.clear())
    assert {each.name: each for each in b.store.stats().tenants}["a"].hit_tokens == 12, "counters only grow"


def test_what_is_written_down_ahead_of_eviction_is_whose_turn_it_is(bench):
    """Exclusive mode: what leaves next is written first; at a quota that is the tenant's own."""
    b = bench(32, {"a": (8, 0), "b": (None, 6)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(theirs, b.prompt(1, 6))
    b.save(ours, b.prompt(1, 8))
    room = b.store._shared.room
    owner, run = room.next_victims(ours._space, 4, 64)
    assert (owner, len(run)) == (ours._space, 2)
    assert room.next_victims(theirs._space, 4, 64) is None, "there is room enough"
    assert (room.may_take(theirs._space, ours._space), room.may_take(theirs._space, theirs._space) > 6) == (0, True)
