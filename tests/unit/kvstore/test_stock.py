"""What a store hands over, in which order, and what it takes over."""

import asyncio
from dataclasses import replace

import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.errors import SessionRefused
from kvterrace.kvstore.handover.paths import MAX_PATH_BLOCKS, pack_path, unpack_path
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tenants.tenants import Limits, Tenants
from kvterrace.proto import FieldError, Retention, RetentionRange
from kvterrace.proto import kv_pb2 as pb

from .lower_bench import PAGE, SPACE, B, FakeTier, LowerBench
from .test_elsewhere import Neighbour

pytestmark = pytest.mark.unit


@pytest.fixture
async def benches():
    """Call it with slots: a store of so many."""
    made: list[LowerBench] = []

    def make(slots: int) -> LowerBench:
        made.append(LowerBench(slots, FakeTier()))
        return made[-1]

    yield make
    for each in made:
        each.store.check()
        await each.store.stop(1.0)
        each.store.close()


async def use(bench: LowerBench, tokens: bytes, times: int) -> None:
    for _ in range(times):
        bench.session.release((await bench.acquire(tokens)).lease)


async def test_what_is_used_most_comes_first_and_a_shared_head_once(benches):
    a = benches(64)
    one, two = a.prompt(1, 8), a.prompt(2, 4)
    longer = one[: 6 * B * 4] + a.prompt(3, 2)
    for tokens in (one, longer, two):
        a.save(tokens)
    await use(a, one, 3)
    await use(a, two, 1)
    paths = a.store.stock.hottest(1 << 30, last_only=True)
    assert sum(path.blocks for path in paths) == 8 + 2 + 4, "each block once"
    assert [path.heat for path in paths] == sorted((path.heat for path in paths), reverse=True)
    assert paths[0].tokens == one[: len(paths[0].tokens)]
    assert {path.tokens for path in paths} >= {one, longer, two}
    assert {(path.namespace, path.fingerprint, path.tenant) for path in paths} == {(SPACE, SPACE.fingerprint(), "")}
    assert paths[0].size_bytes == paths[0].blocks * PAGE


async def test_no_more_bytes_than_asked_for_and_no_replicas_when_last_copies_are_wanted(benches):
    a, b = benches(64), benches(64)
    a.save(a.prompt(1, 8))
    b.store.join(Neighbour(a, 8))
    b.store.stock.replicas.keep({"a": 1})
    await use(b, b.prompt(1, 8), 1)
    b.store.join(None)
    b.save(b.prompt(2, 8))
    stock = b.store.stock
    assert sum(path.blocks for path in stock.hottest(1 << 30, last_only=True)) == 8
    assert sum(path.blocks for path in stock.hottest(1 << 30, last_only=False)) == 16
    assert sum(path.size_bytes for path in stock.hottest(5 * PAGE + 1, last_only=False)) == 5 * PAGE
    assert stock.hottest(PAGE - 1, last_only=False) == []


async def test_a_path_comes_whole_with_its_retention_and_without_a_session_of_its_namespace(benches):
    a, b = benches(64), benches(64)
    a.save(a.prompt(1, 8), [RetentionRange(2, 5, Retention(80, 60.0, True))])
    b.session.close()
    assert b.store.stats().namespaces == ()
    (path, *more) = a.store.stock.hottest(1 << 30, last_only=True)
    assert not more
    again = unpack_path(pb.HotPath.FromString(pack_path(path).SerializeToString()))
    assert again == path
    taken = await b.store.stock.take(again, "a", Neighbour(a, 8), deadline_s=5.0)
    assert (taken.blocks, taken.fetched, taken.reason) == (8, 8, "")
    session = b.store.open_session(SPACE, client="later")
    given = await session.acquire(b.prompt(1, 8), skip=0, deadline_s=1.0)
    assert given.tiers == {"dram": 8 * B}
    (told,) = b.store.stock.hottest(1 << 30, last_only=False)
    assert told.retention == path.retention
    assert (b.store.stock.counts.taken_blocks, b.store.stock.counts.taken_bytes) == (8, 8 * PAGE)
    taken = await b.store.stock.take(again, "a", Neighbour(a, 8), deadline_s=5.0)
    assert (taken.blocks, taken.fetched, taken.reason) == (8, 0, ""), "it has it"
    session.close()


async def test_nothing_hotter_leaves_for_what_is_taken_over(benches):
    a, b = benches(64), benches(8)
    a.save(a.prompt(1, 6))
    await asyncio.sleep(0.02)
    await b.saved(b.prompt(2, 6))
    (path,) = a.store.stock.hottest(1 << 30, last_only=True)
    taken = await b.store.stock.take(path, "a", Neighbour(a, 6), deadline_s=5.0)
    assert (taken.fetched, taken.reason) == (0, "full")
    (hotter,) = a.store.stock.hottest(1 << 30, last_only=True)
    hotter = replace(hotter, idle_s=0.0)
    taken = await b.store.stock.take(hotter, "a", Neighbour(a, 6), deadline_s=5.0)
    assert (taken.fetched, taken.reason) == (6, "")
    assert b.store.stock.counts.refused == {"full": 1}


async def test_what_cannot_be_here_or_is_not_there_is_said(benches):
    a, b = benches(64), benches(64)
    a.save(a.prompt(1, 8))
    (path,) = a.store.stock.hottest(1 << 30, last_only=True)
    stock, gone = b.store.stock, Neighbour(benches(8), 0)
    assert (await stock.take(replace(path, tenant="x"), "a", gone, deadline_s=1.0)).reason == "tenant"
    assert (await stock.take(replace(path, fingerprint=b"f" * 32), "a", gone, deadline_s=1.0)).reason == "namespace"
    assert (await stock.take(path, "a", gone, deadline_s=1.0)).reason == "gone"
    hangs = Neighbour(a, 8)
    hangs.gate.clear()
    assert (await stock.take(path, "a", hangs, deadline_s=0.05)).reason == "deadline"
    hangs.gate.set()
    stock.drain()
    assert (await stock.take(path, "a", Neighbour(a, 8), deadline_s=1.0)).reason == "draining"


async def test_who_drains_serves_what_is_there_and_takes_nothing_new(benches):
    a = benches(64)
    a.save(a.prompt(1, 4))
    a.store.stock.drain()
    assert (await a.acquire(a.prompt(1, 4))).tiers == {"dram": 4 * B}
    given = a.session.reserve(a.prompt(2, 4), start=0, count=4)
    assert (given.lease, given.reason) == (0, "draining")
    assert a.store.stats().counters.dropped_saves["draining"] == 4
    with pytest.raises(SessionRefused, match="draining"):
        a.store.open_session(SPACE, client="late")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("tokens", {"tokens": b"abc"}),
        ("tokens", {"tokens": b"\0" * 4 * (B + 1)}),
        ("tokens", {"tokens": b""}),
        ("tokens", {"first": 8}),
        ("tokens", {"tokens": b"\0" * 4 * B * (MAX_PATH_BLOCKS + 1)}),
        ("heat", {"idle_s": float("nan")}),
        ("heat", {"idle_s": -1.0}),
        ("heat", {"heat": float("inf")}),
    ],
)
async def test_a_path_that_makes_no_sense_names_its_field(benches, field, wrong):
    a = benches(64)
    a.save(a.prompt(1, 8))
    (path,) = a.store.stock.hottest(1 << 30, last_only=True)
    said = pack_path(path)
    for name, value in wrong.items():
        setattr(said, name, value)
    with pytest.raises(ValueError, match=field):
        unpack_path(said)
    said = pack_path(path)
    said.space.namespace.head_dim = 0
    with pytest.raises(FieldError, match="head_dim"):
        unpack_path(said)


async def test_a_tenants_blocks_go_to_that_tenant_whose_salt_both_derive():
    def store(secret: bytes, *names: str) -> Store:
        tenants = Tenants({name: Limits() for name in names}, secret, dram_bytes=64 * PAGE)
        return Store(Arena.anonymous(64 * PAGE), tenants=tenants)

    a, b, other = store(b"s" * 32, "x"), store(b"s" * 32, "x"), store(b"t" * 32, "x")
    lender = LowerBench.__new__(LowerBench)
    lender.store, lender.session = a, a.open_session(SPACE, client="test", tenant="x")
    lender.save(lender.prompt(1, 4))
    neighbour = Neighbour(lender, 4)
    (path,) = a.stock.hottest(1 << 30, last_only=True)
    assert (path.tenant, path.namespace.tenant_salt) == ("x", b"")
    assert path.fingerprint != SPACE.fingerprint()
    path = unpack_path(pack_path(path))
    assert (await b.stock.take(path, "a", neighbour, deadline_s=5.0)).fetched == 4
    assert (await other.stock.take(path, "a", neighbour, deadline_s=5.0)).reason == "namespace"
    session = b.open_session(SPACE, client="test", tenant="x")
    assert session.lookup(lender.prompt(1, 4)).tiers == {"dram": 4 * B}
    assert not b.open_session(SPACE, client="test").lookup(lender.prompt(1, 4)).tiers, "and to nobody else"
    for each in (a, b, other):
        each.check()
        await each.stop(1.0)
        each.close()
