"""Tenants in the tier below DRAM, on a real NvmeTier: quotas, floors, and whose a record is after a restart."""

import asyncio

import pytest
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.tenants.claims import FILE_NAME, Claims
from kvterrace.kvstore.tenants.heads import Head
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto.record import record_bytes

pytestmark = pytest.mark.unit

B = 4
PAGE = 4096
RECORD = record_bytes(1024, B) // PAGE  # pages


@pytest.fixture
async def made(bench, tmp_path):
    """Call it with tenants' limits below, in records; again for a restart on the same path."""
    stores = []

    def make(nvme, *, pages=64, **options):
        tier = NvmeTier.open([NvmePath(tmp_path, 64 << 20, 0)], segment_bytes=1 << 20)
        claims = Claims([tmp_path])
        counted = {name: (quota and quota * RECORD, floor * RECORD) for name, (quota, floor) in nvme.items()}
        below = Below(tier, list(tier.inventory()), backlog_share=1.0, in_flight_share=1.0)
        b = bench(pages, {}, nvme=counted, nvme_pages=1 << 14, claims=claims, below=below, **options)
        stores.append(b)
        return b

    yield make
    for b in stores:
        await b.store.stop(5.0)
        await b.store._promoter.settled()


async def written(b, session, tokens):
    b.save(session, tokens)
    assert await b.store.flush(5.0) == 0
    b.store.check()


def below(b, session, tokens):
    catalog = b.store._depot.of(session.fingerprint)
    return len(catalog.index.match(tokens)) if catalog is not None else 0


async def stop(b):
    await b.store.stop(5.0)
    b.store.close()


async def test_at_its_quota_a_tenant_makes_room_among_its_own(made):
    b = made({"a": (6, 0), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    await written(b, theirs, b.prompt(1, 4))
    await written(b, ours, b.prompt(1, 4))
    await written(b, ours, b.prompt(2, 4))
    assert [below(b, ours, b.prompt(name, 4)) for name in (1, 2)] == [2, 4]
    assert below(b, theirs, b.prompt(1, 4)) == 4
    assert b.tenants.named("a").nvme.used == 6 * RECORD * PAGE


async def test_what_a_quota_has_no_room_for_is_not_written_and_counted(made):
    b = made({"a": (3, 0)})
    session = b.open("a")
    await written(b, session, b.prompt(1, 5))
    assert below(b, session, b.prompt(1, 5)) == 3, "the first of them"
    assert b.counters.dropped_demotions == {"quota": 2}
    assert b.has(session, b.prompt(1, 5)) == 5


async def test_both_tenants_in_one_put_are_counted_apart(made):
    b = made({"a": (2, 0), "b": (3, 0)})
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 4))
    b.save(theirs, b.prompt(1, 4))
    assert await b.store.flush(5.0) == 0
    assert (below(b, ours, b.prompt(1, 4)), below(b, theirs, b.prompt(1, 4))) == (2, 3)
    b.store.check()


async def test_nobody_is_taken_below_its_floor_and_who_is_above_its_quota_gives_first(made, monkeypatch):
    real = NvmeTier.usage

    def usage(self):
        said = real(self)
        return type(said)(said.capacity_bytes, said.used_bytes, said.blocks, said.live_bytes, 8 * RECORD * PAGE)

    monkeypatch.setattr(NvmeTier, "usage", usage)
    b = made({"a": (None, 3), "b": (None, 0)})
    ours, theirs = b.open("a"), b.open("b")
    await written(b, ours, b.prompt(1, 5))
    await written(b, theirs, b.prompt(1, 3))
    await written(b, theirs, b.prompt(2, 2))
    assert (below(b, ours, b.prompt(1, 5)), below(b, theirs, b.prompt(1, 3))) == (3, 3)
    await written(b, theirs, b.prompt(3, 5))
    assert below(b, ours, b.prompt(1, 5)) == 3
    b.store.tenancy.limit("b", nvme_quota=2 * RECORD * PAGE)
    await written(b, ours, b.prompt(4, 3))
    assert b.tenants.named("b").nvme.used == 2 * RECORD * PAGE
    assert below(b, ours, b.prompt(1, 5)) == 3, "though they were colder"


async def test_after_a_restart_it_is_known_whose_records_are_before_anybody_comes(made, tmp_path):
    b = made({"a": (None, 0), "b": (None, 0)})
    for name in ("a", "b", ""):
        await written(b, b.open(name), b.prompt(1, 4))
    fingerprint = b.open("a").fingerprint
    await stop(b)
    again = made({"a": (None, 0), "b": (None, 0)})
    used = {each.name: each.used["nvme"] // PAGE // RECORD for each in again.store.stats().tenants}
    assert used == {"a": 4, "b": 4, "": 4}
    assert again.store.tenancy.tenant_of(fingerprint) == again.tenants.tenant_of(fingerprint) == "a"
    assert await again.store.clear_tenant("a") == 4
    await stop(again)
    last = made({"a": (None, 0), "b": (None, 0)})
    assert (await last.read(last.open("a"), last.prompt(1, 4))).reason == "never_seen"
    assert (await last.read(last.open("b"), last.prompt(1, 4))).tiers == {"nvme": 4 * B}


async def test_a_namespace_whose_owner_was_forgotten_is_claimed_by_the_session_that_opens_it(made, tmp_path):
    b = made({"a": (None, 0)})
    await written(b, b.open("a"), b.prompt(1, 4))
    await stop(b)
    (tmp_path / FILE_NAME).unlink()
    again = made({"a": (None, 0)})
    assert again.tenants.named("a").nvme.used == 0
    session = again.open("a")
    assert again.tenants.named("a").nvme.used == 4 * RECORD * PAGE
    assert (await again.read(session, again.prompt(1, 4))).tiers == {"nvme": 4 * B}
    assert Claims([tmp_path]).of("a") == [session.fingerprint]


async def test_records_of_a_tenant_that_is_no_more_can_be_erased(made):
    b = made({"a": (None, 0), "b": (None, 0)})
    await written(b, b.open("a"), b.prompt(1, 4))
    await stop(b)
    again = made({"b": (None, 0)})
    assert await again.store.clear_tenant("a") == 4


async def test_a_shared_head_comes_back_from_below_after_a_restart(made, bench):
    heads = [Head(bench(8, {}).prompt(1, 4), frozenset("*"))]
    b = made({"a": (None, 0), "b": (None, 0)}, heads=heads)
    await written(b, b.open("a"), b.prompt(1, 6))
    await b.store._sharing.settled()
    shared = next(each for each in b.store._spaces.values() if each.tenant is b.tenants.shared)
    await b.store._demoter.write_out(shared)
    assert await b.store.flush(5.0) == 0
    await stop(b)
    again = made({"a": (None, 0), "b": (None, 0)}, heads=heads)
    theirs = again.open("b")
    assert again.has(theirs, again.prompt(1, 6)) == 4
    assert len((await again.read(theirs, again.prompt(1, 6))).slots) == 4
    again.store.check()


def test_claims_survive_a_torn_line_and_what_is_no_line(tmp_path):
    claims = Claims([tmp_path])
    claims.add(bytes(32), "a")
    path = tmp_path / FILE_NAME
    path.write_text(path.read_text() + "nonsense\n" + "ff" * 32 + " b/c\n" + "ab" * 20)
    again = Claims([tmp_path])
    assert (again.get(bytes(32)), again.get(b"\xff" * 32), again.of("a")) == ("a", None, [bytes(32)])
    again.add(b"\x01" * 32, "b")
    assert Claims([tmp_path]).get(b"\x01" * 32) == "b"
    assert path.stat().st_mode & 0o777 == 0o600


def test_claims_are_on_every_path_and_one_that_fails_does_not_matter(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir()
    claims = Claims([first, second])
    claims.add(bytes(32), "a")
    assert Claims([second, first]).get(bytes(32)) == "a"


def test_claims_of_namespaces_without_records_are_dropped_once_there_are_many(tmp_path):
    claims = Claims([tmp_path])
    for number in range(6):
        claims.add(bytes([number]) * 32, "a")
    claims.keep({bytes(32)}, most=6)
    assert len(claims.of("a")) == 6
    claims.keep({bytes(32)}, most=5)
    assert claims.of("a") == Claims([tmp_path]).of("a") == [bytes(32)]


def test_without_a_tier_below_nothing_is_written_about_namespaces(bench, tmp_path):
    b = bench(8, {"a": (None, 0)}, claims=Claims([tmp_path]))
    b.save(b.open("a"), b.prompt(1, 2))
    asyncio.run(b.store.flush(1.0))
    assert not list(tmp_path.iterdir())


async def test_a_quota_that_has_no_room_for_one_record(made):
    b = made({"a": (0, 0)})
    session = b.open("a")
    await written(b, session, b.prompt(1, 3))
    assert below(b, session, b.prompt(1, 3)) == 0
    assert b.counters.dropped_demotions == {"quota": 3}
