"""Objects as files: what is found damaged, what the cap leaves, what a crash leaves, what a full disk does."""

import asyncio
import errno
import os
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Rejected, Stored
from kvterrace.kvstore.tiers.remote import Directory, Name, OnThreads, RemoteTier

from .conftest import PAGE, ask, record

pytestmark = pytest.mark.unit

BLOCK = 2 * PAGE  # on the disk: header page and block


def make(path, capacity_bytes=100 * BLOCK, **options) -> RemoteTier:
    return RemoteTier(OnThreads(Directory(path, capacity_bytes, **options)), deadline_s=5.0)


def files(path):
    return sorted(each for each in path.rglob("*") if each.is_file())


@pytest.fixture
async def tier(shared):
    made = make(shared)
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda data: data[:-1], "torn"),
        (lambda data: data[:100], "torn"),
        (lambda data: b"", "torn"),
        (lambda data: data + b"x", "torn"),
        (lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:], "flipped"),
        (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "flipped"),
        (lambda data: bytes(len(data)), "flipped"),
        (lambda data: b"something else altogether" * 400, "flipped"),
    ],
)
async def test_a_damaged_object_is_a_counted_miss_and_gone(tier, shared, damage, kind):
    one = record(1)
    await tier.put([one], deadline_s=5)
    (path,) = files(shared)
    path.write_bytes(damage(path.read_bytes()))
    assert await tier.get([ask(one)], deadline_s=5) == [Failed("corrupt")]
    assert tier.counts.bad_objects == {kind: 1}
    assert files(shared) == []
    assert await tier.get([ask(one)], deadline_s=5) == [Miss()]
    assert await tier.put([one], deadline_s=5) == [Stored()]
    assert await tier.get([ask(one)], deadline_s=5) == [Hit(one.checksum)]


async def test_another_blocks_object_under_this_name_is_foreign(tier, shared):
    one, other = record(1), record(2)
    await tier.put([one, other], deadline_s=5)
    at = {path.name: path for path in files(shared)}
    at[one.key.hex()].write_bytes(at[other.key.hex()].read_bytes())
    assert await tier.get([ask(one), ask(other)], deadline_s=5) == [Failed("corrupt"), Hit(other.checksum)]
    assert tier.counts.bad_objects == {"foreign": 1}


@pytest.mark.parametrize("make_it", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo])
async def test_what_is_no_file_is_neither_followed_nor_waited_for(tier, shared, make_it):
    one = record(1)
    await tier.put([one], deadline_s=5)
    (path,) = files(shared)
    path.unlink()
    make_it(path)
    assert await tier.get([ask(one)], deadline_s=5) == [Failed("corrupt")]
    assert not path.is_symlink()
    assert not path.exists()
    assert await tier.put([one], deadline_s=5) == [Stored()]


async def test_a_damaged_object_that_cannot_be_removed_is_read_once(tier, shared, monkeypatch):
    one = record(1)
    await tier.put([one], deadline_s=5)
    (path,) = files(shared)
    path.write_bytes(bytes(BLOCK))
    monkeypatch.setattr(Directory, "_unlink", lambda self, path: (_ for _ in ()).throw(OSError(errno.EROFS, "no")))
    assert await tier.get([ask(one)], deadline_s=5) == [Failed("corrupt")]
    assert await tier.get([ask(one)], deadline_s=5) == [Miss()]
    assert tier.counts.bad_objects == {"flipped": 1}
    assert await tier.put([one], deadline_s=5) == [Stored()], "and it can be put right"
    assert await tier.get([ask(one)], deadline_s=5) == [Hit(one.checksum)]


async def test_the_bytes_of_two_writers_of_one_block_are_whole(shared):
    tiers = [make(shared) for _ in range(4)]
    one = record(1, 300_000)
    assert await asyncio.gather(*(each.put([one], deadline_s=10) for each in tiers)) == [[Stored()]] * 4
    for each in tiers:
        wanted = ask(one)
        assert await each.get([wanted], deadline_s=5) == [Hit(one.checksum)]
        assert (wanted.into == one.payload).all()
    assert len(files(shared)) == 1, "nothing half-written is left"
    for each in tiers:
        await each.close()


async def test_what_a_crash_left_half_written_is_never_seen_and_swept_later(shared):
    left = shared / "kvterrace-1" / "tmp" / "0123"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    young = left.with_name("4567")
    young.write_bytes(b"being written now")
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    objects = Directory(shared, 100 * BLOCK)
    objects.count()
    assert files(shared) == [young]
    assert objects.usage().blocks == 0


async def test_what_is_there_counts_from_the_start(shared):
    first = make(shared, 10 * BLOCK)
    await first.put([record(number) for number in range(8)], deadline_s=5)
    await first.close()
    again = Directory(shared, 10 * BLOCK)
    again.count()
    assert (again.usage().blocks, again.usage().used_bytes) == (8, 8 * BLOCK)
    second = make(shared, 10 * BLOCK)
    for number in range(8, 14):
        assert await second.put([record(number)], deadline_s=5) == [Stored()]
        assert len(files(shared)) <= 10, "although it has never counted before"
    assert second.evicted == len(range(14)) - len(files(shared))
    await second.close()


async def test_what_another_node_wrote_counts_at_the_next_look(shared):
    a, b = make(shared, 10 * BLOCK), Directory(shared, 10 * BLOCK)
    b.count()
    await a.put([record(number) for number in range(10)], deadline_s=5)
    assert b.usage().blocks == 0
    b.count()
    assert len(files(shared)) == b.usage().blocks == 8, "room is made before it is needed"
    await a.close()


async def test_tails_leave_before_their_heads_and_what_is_used_stays(shared):
    now = [1e9]
    tier = make(shared, 10 * BLOCK, wall=lambda: now[0])
    left = lambda: {bytes.fromhex(path.name)[0] for path in files(shared)}  # noqa: E731
    for number in range(10):  # one prompt: ordinal = number
        await tier.put([record(number)], deadline_s=5)
        now[0] += 0.01  # tails are written last
    now[0] += 100
    assert await tier.put([record(50)], deadline_s=5) == [Stored()]
    assert left() == {*range(8), 50}
    now[0] += 100
    await tier.get([ask(record(number)) for number in range(4)], deadline_s=5)
    for number in range(60, 64):
        now[0] += 100
        await tier.put([record(number)], deadline_s=5)
    assert left() == {*range(4), 50, *range(60, 64)}
    await tier.close()


@pytest.mark.parametrize(("code", "answer"), [(errno.ENOSPC, Rejected("full")), (errno.EROFS, Failed("io"))])
async def test_a_disk_that_takes_nothing_is_left_alone_and_still_read(shared, code, answer):
    failing = []

    def sync(fd):
        if failing:
            raise OSError(code, os.strerror(code))

    now = [0.0]
    tier = RemoteTier(OnThreads(Directory(shared, 100 * BLOCK, sync=sync)), deadline_s=5.0, clock=lambda: now[0])
    await tier.put([record(1)], deadline_s=5)
    failing.append(True)
    assert await tier.put([record(2)], deadline_s=5) == [answer]
    assert not tier.takes
    assert await tier.put([record(3)], deadline_s=5) == [Failed("breaker")]
    assert await tier.get([ask(record(1)), ask(record(2))], deadline_s=5) == [Hit(record(1).checksum), Miss()]
    assert sum(tier.counts.failures.values()) == 1
    assert tier.usage().blocks == len(files(shared)) == 1, "nothing half-written is left, or counted"
    failing.clear()
    now[0] += 2.0
    assert await tier.put([record(3)], deadline_s=5) == [Stored()]
    await tier.close()


async def test_a_folder_that_is_not_there_is_empty_until_something_is_written(tmp_path):
    tier = make(tmp_path / "not" / "mounted")
    assert await tier.get([ask(record(1))], deadline_s=5) == [Miss()]
    assert await tier.put([record(1)], deadline_s=5) == [Stored()]
    await tier.close()


async def test_clear_removes_one_namespace_whoever_wrote_it(shared):
    a, b = make(shared), make(shared)
    await a.put([record(1), record(2)], deadline_s=5)
    await a.put([record(3, fingerprint=b"x" * 32)], deadline_s=5)
    assert await b.clear(bytes(32)) == 2
    assert await b.clear(bytes(32)) == 0
    assert [path.name for path in files(shared)] == [record(3).key.hex()]
    for each in (a, b):
        await each.close()


@given(st.binary(max_size=40), st.binary(max_size=40))
@settings(max_examples=40)
def test_names_are_made_of_hex_digits_whatever_they_name(fingerprint, key):
    name = Name(fingerprint, key)
    assert re.fullmatch(r"[0-9a-f]*/[0-9a-f]*/[0-9a-f]*", name.text)
    assert name.valid == (len(fingerprint) == 32 and len(key) in (16, 32))


@pytest.mark.parametrize("key", [b"", b"../../../../etc/passwd", b"/" * 31, b"x" * 33])
async def test_what_cannot_name_a_block_touches_no_file(tier, shared, key):
    hostile = record(1, key=key)
    assert await tier.put([hostile], deadline_s=5) == [Rejected("corrupt")]
    assert await tier.get([ask(hostile)], deadline_s=5) == [Miss()]
    assert await tier.drop([key]) == [False]
    assert await tier.clear(key) == 0
    assert not shared.exists()
