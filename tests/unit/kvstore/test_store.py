"""What an engine may rely on: leases, atomic visibility, bounds, reasons, refusals."""

import asyncio
import dataclasses
import random
import tracemalloc

import pytest
import xxhash
from kvterrace.kvstore.errors import SessionClosed, SessionRefused
from kvterrace.proto import BlockLayout, Namespace

pytestmark = pytest.mark.unit


def test_a_saved_prefix_is_found_with_its_bytes_by_another_session(bench):
    b = bench(64)
    writer, reader = b.open(), b.open()
    b.save(writer, b.prompt(1, 5))
    got = b.acquire(reader, b.prompt(1, 8), skip=2)
    assert (got.first, len(got.slots), got.reason) == (2, 3, "never_seen")
    assert got.tiers == {"dram": 12}
    for ref in got.slots:
        block = reader.arena.block(ref.slot)[: reader.arena.block_bytes]
        assert xxhash.xxh3_64_intdigest(block) == ref.checksum
        assert reader.arena.generation(ref.slot) == ref.generation


@pytest.mark.parametrize("tokens", [4 * 3 - 1, 4 * 3, 4 * 3 + 1])
def test_only_full_blocks_count(bench, tokens):
    b = bench(16)
    session = b.open()
    b.save(session, b.prompt(1, 3))
    got = b.acquire(session, b.prompt(1, 4)[: tokens * 4])
    assert (len(got.slots), got.reason) == (tokens // 4, "")


def test_nothing_is_visible_before_commit_and_all_of_it_after(bench):
    b = bench(16)
    writer, reader = b.open(), b.open()
    reserved = writer.reserve(b.prompt(1, 3), start=0, count=3)
    assert b.acquire(reader, b.prompt(1, 3)).reason == "not_committed"
    assert writer.commit(reserved.lease, b.fill(writer, reserved))
    assert len(b.acquire(reader, b.prompt(1, 3)).slots) == 3


def test_a_writer_that_dies_between_reserve_and_commit_blocks_nobody(bench):
    b = bench(8)
    dead = b.open()
    dead.reserve(b.prompt(1, 8), start=0, count=8)
    dead.close()
    assert b.dram.used_bytes == 0
    other = b.open()
    assert b.acquire(other, b.prompt(1, 8)).reason == "never_seen"
    assert b.save(other, b.prompt(1, 8)) == 8


def test_a_session_that_dies_gives_its_read_leases_back(bench):
    b = bench(4)
    session, other = b.open(), b.open()
    b.save(session, b.prompt(1, 4))
    b.acquire(session, b.prompt(1, 4))
    assert other.reserve(b.prompt(2, 1), start=0, count=1).reason == "full"
    session.close()
    assert b.save(other, b.prompt(2, 4)) == 4


def test_an_arena_full_of_leased_slots_refuses_writes_and_still_serves_reads(bench):
    b = bench(8)
    session = b.open()
    b.save(session, b.prompt(1, 8))
    held = b.acquire(session, b.prompt(1, 8))
    refused = session.reserve(b.prompt(2, 3), start=0, count=3)
    assert (refused.lease, refused.blocks, refused.reason) == (0, (), "full")
    assert b.counters.dropped_saves == {"full": 3}
    assert b.counters.evictions == {}
    assert len(b.acquire(session, b.prompt(1, 8)).slots) == 8
    assert all(session.arena.generation(ref.slot) == ref.generation for ref in held.slots)


def test_a_save_larger_than_the_room_stores_its_beginning(bench):
    """A prompt longer than the arena would never be cached otherwise. Root first, so that what is stored can match."""
    b = bench(8)
    session = b.open()
    reserved = session.reserve(b.prompt(1, 20), start=0, count=20)
    assert (reserved.blocks, reserved.reason) == (tuple(range(8)), "full")
    assert session.commit(reserved.lease, b.fill(session, reserved))
    assert len(b.acquire(session, b.prompt(1, 20)).slots) == 8
    assert b.counters.dropped_saves == {"full": 12}


def test_a_save_never_evicts_its_own_parents(bench):
    b = bench(4)
    session = b.open()
    b.save(session, b.prompt(1, 3))
    reserved = session.reserve(b.prompt(1, 8), start=3, count=5)
    assert (reserved.blocks, reserved.reason) == ((3,), "full")


def test_backlog_is_bounded_per_session_and_overall(bench):
    b = bench(64, max_backlog_slots=10, max_session_backlog_slots=6)
    one, two = b.open(), b.open()
    first = one.reserve(b.prompt(1, 9), start=0, count=9)
    assert (len(first.blocks), first.reason) == (6, "backlog")
    assert one.reserve(b.prompt(2, 1), start=0, count=1).reason == "backlog"
    second = two.reserve(b.prompt(3, 9), start=0, count=9)
    assert (len(second.blocks), second.reason) == (4, "backlog")
    one.abort(first.lease)
    assert two.reserve(b.prompt(4, 2), start=0, count=2).reason == ""
    assert b.counters.dropped_saves == {"backlog": 3 + 1 + 5}


def test_leases_of_a_session_are_bounded(bench):
    b = bench(16, max_session_leases=3)
    session = b.open()
    b.save(session, b.prompt(1, 2))
    leases = [b.acquire(session, b.prompt(1, 2)).lease for _ in range(3)]
    assert b.acquire(session, b.prompt(1, 2)).reason == "busy"
    assert session.reserve(b.prompt(2, 1), start=0, count=1).reason == "busy"
    session.release(leases[0])
    assert b.acquire(session, b.prompt(1, 2)).lease


def test_no_orphan_suffix(bench):
    b = bench(16)
    session = b.open()
    assert session.reserve(b.prompt(1, 4), start=2, count=2).reason == "no_parent"
    assert b.dram.used_bytes == 0
    b.save(session, b.prompt(1, 2))
    assert session.reserve(b.prompt(1, 4), start=2, count=2).blocks == (2, 3)
    assert session.reserve(b.prompt(1, 2), start=0, count=2).reason == "present"


def test_the_second_of_two_writers_of_the_same_blocks_gives_its_slots_back(bench):
    b = bench(16)
    one, two = b.open(), b.open()
    first = one.reserve(b.prompt(1, 3), start=0, count=3)
    second = two.reserve(b.prompt(1, 5), start=0, count=5)
    assert one.commit(first.lease, b.fill(one, first))
    generations = [two.arena.generation(ref.slot) for ref in second.slots]
    assert two.commit(second.lease, b.fill(two, second))
    assert b.dram.used_bytes == 5 * 4096
    assert b.counters.duplicate_blocks == 3
    moved = [two.arena.generation(ref.slot) - was for ref, was in zip(second.slots, generations, strict=True)]
    assert moved == [1, 1, 1, 0, 0]
    got = b.acquire(one, b.prompt(1, 5))
    assert [ref.slot for ref in got.slots] == [*(r.slot for r in first.slots), *(r.slot for r in second.slots[3:])]


def test_a_freed_slot_has_another_generation(bench):
    b = bench(2)
    session = b.open()
    b.save(session, b.prompt(1, 2))
    got = b.acquire(session, b.prompt(1, 2))
    session.release(got.lease)
    b.save(session, b.prompt(2, 2))
    assert all(session.arena.generation(ref.slot) != ref.generation for ref in got.slots)


def test_a_corrupt_block_is_a_miss_for_everyone_and_its_readers_keep_their_slots(bench):
    b = bench(8)
    session, other = b.open(), b.open()
    b.save(session, b.prompt(1, 4))
    got = b.acquire(session, b.prompt(1, 4))
    shared = b.acquire(other, b.prompt(1, 4))
    session.arena.block(got.slots[1].slot)[5] ^= 0xFF
    session.release(got.lease, corrupt=[1, 3])
    assert b.counters.checksum_failures == 2
    assert b.counters.evictions == {"corrupt": 3}
    again = b.acquire(session, b.prompt(1, 4))
    assert (len(again.slots), again.reason) == (1, "corrupt")
    assert all(other.arena.generation(ref.slot) == ref.generation for ref in shared.slots), "still being read"
    assert b.dram.used_bytes == 4 * 4096
    other.release(shared.lease)
    assert b.dram.used_bytes == 4096
    assert b.save(session, b.prompt(1, 4)) == 3


def test_a_late_report_of_a_corrupt_block_spares_its_successor(bench):
    """Two readers report the same bad block; in between it was stored anew."""
    b = bench(8)
    one, two = b.open(), b.open()
    b.save(one, b.prompt(1, 2))
    first, second = b.acquire(one, b.prompt(1, 2)), b.acquire(two, b.prompt(1, 2))
    one.release(first.lease, corrupt=[0])
    b.save(one, b.prompt(1, 2))
    two.release(second.lease, corrupt=[0])
    assert len(b.acquire(one, b.prompt(1, 2)).slots) == 2


def test_clear_drops_what_is_there_and_what_is_on_its_way(bench):
    b = bench(32)
    session, other = b.open(), b.open(tenant_salt=b"other")
    b.save(session, b.prompt(1, 3))
    b.save(other, b.prompt(1, 3))
    reading = b.acquire(session, b.prompt(1, 3))
    writing = session.reserve(b.prompt(2, 2), start=0, count=2)
    assert asyncio.run(b.store.clear(session.fingerprint)) == 3
    assert not session.commit(writing.lease, b.fill(session, writing))
    assert b.acquire(session, b.prompt(1, 3)).reason == "cleared"
    assert session.arena.generation(reading.slots[0].slot) == reading.slots[0].generation
    assert len(b.acquire(other, b.prompt(1, 3)).slots) == 3
    session.release(reading.lease)
    assert asyncio.run(b.store.clear()) == 3


def test_probing_neither_pins_nor_touches_nor_counts(bench):
    b = bench(4)
    session = b.open()
    b.save(session, b.prompt(1, 2))
    b.now = 1
    b.save(session, b.prompt(2, 2))
    b.now = 2
    for _ in range(100):
        assert session.lookup(b.prompt(1, 2)).tiers == {"dram": 8}
    assert b.save(session, b.prompt(3, 2)) == 2, "probed blocks can be evicted"
    found = session.lookup(b.prompt(1, 2))
    assert (found.tiers, found.reason) == ({}, "evicted"), "probing kept nothing warm"
    assert (b.counters.acquires, b.counters.hit_tokens) == (0, {})


def test_one_request_is_one_hit_and_hits_and_misses_are_tokens(bench):
    b = bench(16)
    session = b.open()
    b.save(session, b.prompt(1, 3))
    for _ in range(2):
        session.release(b.acquire(session, b.prompt(1, 5), skip=1).lease)
    counters = b.counters
    assert (counters.acquires, counters.hit_tokens, counters.miss_tokens) == (2, {"dram": 16}, {"never_seen": 16})
    (space,) = b.store.stats().namespaces
    assert (space.hit_tokens, space.miss_tokens, space.blocks, space.bytes) == (16, 16, 3, 3 * 4096)
    asyncio.run(b.store.clear())
    assert b.counters.evictions_reused == {"cleared": 3}


def test_a_miss_says_why(bench):
    b = bench(4)
    session = b.open()
    b.save(session, b.prompt(1, 4))
    b.save(session, b.prompt(2, 4))
    assert b.acquire(session, b.prompt(1, 4)).reason == "evicted"
    assert b.acquire(session, b.prompt(9, 4)).reason == "never_seen"


def test_deadline_zero_never_waits(bench):
    """Without a loop: one step of the coroutine must be its end."""
    b = bench(4)
    session = b.open()
    with pytest.raises(StopIteration):
        session.acquire(b.prompt(1, 4), skip=0, deadline_s=0).send(None)


def test_tenants_never_see_each_other(bench):
    b = bench(16)
    one, two = b.open(tenant_salt=b"a"), b.open(tenant_salt=b"b")
    b.save(one, b.prompt(1, 2))
    got = b.acquire(two, b.prompt(1, 2))
    assert (got.slots, got.reason) == ((), "never_seen")


@pytest.mark.parametrize(("field", "value"), [("kv_heads", 2), ("layers", 3), ("planes", 1), ("head_dim", 32)])
def test_the_same_weights_with_another_geometry_are_refused(bench, layouts, field, value):
    b = bench(16)
    b.open()
    with pytest.raises(SessionRefused, match=field) as caught:
        b.open(layout=dataclasses.replace(layouts[0], **{field: value}), adapter_digest=b"any")
    assert (caught.value.field, caught.value.theirs) == (field, str(value))
    assert caught.value.ours == str(getattr(layouts[0], field))


def test_pipeline_stages_may_hold_different_numbers_of_layers(bench, layouts):
    b = bench(16)
    b.open()
    b.open(layout=dataclasses.replace(layouts[0], layers=2), first_layer=1)


def test_other_refusals_name_their_field(bench):
    b = bench(16, max_sessions=1)
    namespace = Namespace(b"weights-1", BlockLayout(1, 1, 1, 4, 64, "int8"))
    for field, wrong, claim in (
        ("hash_name", dataclasses.replace(namespace, hash_name="md5"), None),
        ("fingerprint", namespace, bytes(32)),
        ("slot_bytes", dataclasses.replace(namespace, layout=BlockLayout(16, 16, 2, 16, 64, "int8")), None),
    ):
        with pytest.raises(SessionRefused) as caught:
            b.store.open_session(wrong, client="test", fingerprint=claim)
        assert caught.value.field == field
    b.store.open_session(namespace, client="test", fingerprint=namespace.fingerprint())
    with pytest.raises(SessionRefused, match="sessions"):
        b.open()


def test_requests_without_sense_change_nothing(bench):
    b = bench(8)
    session = b.open()
    b.save(session, b.prompt(1, 2))
    got = b.acquire(session, b.prompt(1, 2))
    reserved = session.reserve(b.prompt(2, 2), start=0, count=2)
    for call in (
        lambda: session.reserve(b.prompt(3, 2), start=0, count=3),
        lambda: session.reserve(b.prompt(3, 2), start=-1, count=1),
        lambda: session.commit(reserved.lease, [1]),
        lambda: session.commit(reserved.lease, [1, 1 << 64]),
        lambda: session.release(got.lease, corrupt=[2]),
        lambda: session.release(got.lease, corrupt=[-1]),
    ):
        with pytest.raises(ValueError):
            call()
    session.release(reserved.lease)
    session.abort(got.lease)
    assert not session.commit(got.lease, [1, 2])
    b.store.check()
    assert session.commit(reserved.lease, [1, 2])


def test_a_closed_session_answers_nothing(bench):
    b = bench(8)
    session = b.open()
    session.close()
    session.close()
    with pytest.raises(SessionClosed):
        session.lookup(b.prompt(1, 1))
    with pytest.raises(SessionClosed):
        asyncio.run(session.acquire(b.prompt(1, 1), skip=0, deadline_s=0))


def test_200_interleaved_sessions_leave_nothing_behind(bench):
    b = bench(256, max_session_backlog_slots=64)
    sessions = [b.open(tenant_salt=bytes([i % 3])) for i in range(200)]

    async def life(number: int) -> None:
        session, chance = sessions[number], random.Random(number)
        for turn in range(4):
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            tokens = b.prompt((number + turn) % 23, 6)
            got = await session.acquire(tokens, skip=0, deadline_s=0.1)
            await asyncio.sleep(0)
            for ref in got.slots:
                block = session.arena.block(ref.slot)[: session.arena.block_bytes]
                assert xxhash.xxh3_64_intdigest(block) == ref.checksum
            reserved = session.reserve(tokens, start=len(got.slots), count=6 - len(got.slots)) if got.reason else got
            await asyncio.sleep(0)
            if reserved is not got and reserved.lease and (number + turn) % 7:
                session.commit(reserved.lease, b.fill(session, reserved))
            session.release(got.lease)
        if number % 2:
            session.close()

    async def everyone() -> None:
        await asyncio.gather(*(life(number) for number in range(200)))

    asyncio.run(everyone())
    b.store.check()
    assert b.counters.evictions["capacity"] > 0
    assert b.counters.hit_tokens["dram"] > 0
    for session in sessions:
        session.close()
    assert (b.dram.leased_bytes, b.dram.reserved_bytes, b.store.stats().sessions) == (0, 0, ())


def test_metadata_is_bounded_per_block_and_does_not_grow_with_use(bench):
    """Bytes of Python memory per stored block, and none more after many times the arena has gone through."""
    tracemalloc.start()
    try:
        b = bench(512, ghost_entries=1024)
        session = b.open()
        empty = tracemalloc.get_traced_memory()[0]
        for name in range(16):  # of 32 blocks: Python keeps up to 2,000 shorter tuples of each length for reuse
            b.save(session, b.prompt(name, 32))
        full = tracemalloc.get_traced_memory()[0]
        assert (full - empty) / 512 < 400
        for name in range(1000, 1064):
            b.save(session, b.prompt(name, 32))
        assert tracemalloc.get_traced_memory()[0] < full + 512 * 50
    finally:
        tracemalloc.stop()


def test_namespaces_that_are_empty_and_unused_are_forgotten(bench):
    """Adapters and engines come and go; what they leave must not be kept for ever, nor stand against other geometry."""
    b = bench(16)
    for number in range(50):
        b.open(adapter_digest=number.to_bytes(2, "little")).close()
    assert b.store.stats().namespaces == ()
    kept = b.open()
    b.save(kept, b.prompt(1, 1))
    kept.close()
    assert len(b.store.stats().namespaces) == 1, "blocks outlive their sessions"
    assert len(b.acquire(b.open(), b.prompt(1, 1)).slots) == 1
