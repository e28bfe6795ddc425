"""A file system that hangs, and what that may cost: the deadline, once or twice, and nothing else."""

import asyncio
import threading
import time

import pytest
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.promoter import MAX_READING
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Stored
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.kvstore.tiers.remote import Directory, OnThreads, RemoteTier
from kvterrace.kvstore.tiers.remote.threads import READERS

from .conftest import CAPACITY_BYTES, PAGE, B, Node, ask, record

pytestmark = pytest.mark.unit


class Hanging(Directory):
    """Calls named in `stuck` do not return while `gate` is shut."""

    def __init__(self, root) -> None:
        super().__init__(root, CAPACITY_BYTES)
        self.gate = threading.Event()
        self.gate.set()
        self.stuck = {"read", "write", "exists", "remove"}
        self.only: bytes | None = None  # this key's calls

    def _wait(self, verb, name):
        if verb in self.stuck and self.only in (None, name.key):
            assert self.gate.wait(30)

    def read(self, name, head, payload):
        self._wait("read", name)
        return super().read(name, head, payload)

    def write(self, name, head, payload, *, replace):
        self._wait("write", name)
        return super().write(name, head, payload, replace=replace)

    def exists(self, name):
        self._wait("exists", name)
        return super().exists(name)


@pytest.fixture
async def mount(shared):
    made = Hanging(shared)
    yield made
    made.gate.set()


def over(mount, deadline_s=0.1, **options) -> RemoteTier:
    return RemoteTier(OnThreads(mount), deadline_s=deadline_s, **options)


@pytest.fixture
async def node(mount):
    """A node whose prompt 1 is in the store of last resort and not in its own memory."""
    writer = Node(64, over(mount, 5.0))
    await writer.saved(writer.prompt(1, 8))
    await writer.close()
    made = Node(64, over(mount))
    yield made
    mount.gate.set()
    await made.close()


async def seconds(work) -> float:
    began = time.monotonic()
    await work
    return time.monotonic() - began


async def test_a_read_that_hangs_keeps_its_memory_and_no_other_read(mount):
    tier = over(mount, 5.0)
    stuck, other = record(1), record(2)
    await tier.put([stuck, other], deadline_s=5)
    mount.only = stuck.key
    mount.gate.clear()
    wanted = ask(stuck)
    got = await tier.get([wanted, ask(other)], deadline_s=0.3)
    assert got[1] == Hit(other.checksum)
    assert got[0].reason == "deadline"
    assert not got[0].until.is_set(), "the thread may still write"
    mount.gate.set()
    async with asyncio.timeout(5):
        await got[0].until.wait()
    await tier.close()


async def test_what_waited_behind_threads_that_hang_is_never_begun(mount):
    tier = over(mount, 5.0, clock=lambda: 0.0)
    await tier.put([record(1)], deadline_s=5)
    mount.gate.clear()
    asked = [ask(record(1)) for _ in range(READERS + 5)]
    got = await tier.get(asked, deadline_s=0.2)
    free = [each for each, answer in zip(asked, got, strict=True) if answer.until is None]
    assert len(free) >= 5
    mount.gate.set()
    await asyncio.gather(*(answer.until.wait() for answer in got if answer.until is not None))
    assert not any(each.into.any() for each in free), "its memory was free from the deadline on"
    await tier.close()


async def test_requests_end_by_their_deadline_and_soon_do_not_wait_at_all(mount, node):
    mount.gate.clear()
    for _ in range(4):
        got = []

        async def one(into=got):
            into.append(await node.acquire(node.prompt(1, 8), deadline_s=0.5))

        assert await seconds(one()) < 2.0
        assert len(got[0].slots) == 0
    assert not node.tier.ready
    assert node.session.acquire_now(node.prompt(1, 8), skip=0, deadline_s=0.5) is not None, "not even asked"
    node.store.check()


async def test_reads_that_hang_open_the_breaker_and_free_their_slots_when_they_end(mount, node):
    mount.stuck = {"read"}
    mount.gate.clear()
    got = await node.acquire(node.prompt(1, 8), deadline_s=2.0)
    assert (len(got.slots), got.reason) == (0, "deadline")
    assert not node.tier.ready
    used = node.store.stats().tiers[0].used_bytes
    assert used == 8 * PAGE, "threads may still write to all of them"
    mount.gate.set()
    end = time.monotonic() + 10
    while node.store.stats().tiers[0].used_bytes:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    node.store.check()


async def test_it_recovers_when_the_mount_does(mount):
    now = [0.0]
    tier = over(mount, 0.2, clock=lambda: now[0])
    assert await tier.put([record(1)], deadline_s=5) == [Stored()]
    mount.gate.clear()
    for _ in range(3):
        assert (await tier.get([ask(record(1))], deadline_s=1))[0].reason == "deadline"
    assert await tier.get([ask(record(1))], deadline_s=1) == [Failed("breaker")]
    mount.gate.set()
    now[0] += 2.0
    end = time.monotonic() + 10
    while await tier.get([ask(record(1))], deadline_s=1) != [Hit(record(1).checksum)]:
        now[0] += 100
        assert time.monotonic() < end
    assert tier.ready
    await tier.close()


async def test_a_short_deadline_that_was_missed_says_nothing_of_the_mount(mount):
    tier = over(mount, 5.0)
    await tier.put([record(1)], deadline_s=5)
    mount.gate.clear()
    for _ in range(5):
        assert (await tier.get([ask(record(1))], deadline_s=0.01))[0].reason == "deadline"
    assert tier.ready
    mount.gate.set()
    await tier.close()


async def test_loads_from_the_disk_do_not_wait_for_reads_that_hang(mount, tmp_path):
    disk = NvmeTier.open([NvmePath(tmp_path / "nvme", 1 << 20, min_free_bytes=0)], segment_bytes=65536)
    writer = Node(512, over(mount, 30.0))
    for name in range(MAX_READING + 4):
        await writer.saved(writer.prompt(name, 2))
    await writer.close()
    below = Below(disk, backlog_share=1.0)
    node = Node(64, over(mount, 30.0), below=below, backlog_share=0.0)
    node.save(node.prompt(100, 4))
    mount.stuck = {"read"}
    mount.gate.clear()
    await node.store._demoter.flush()
    for name in range(200, 215):  # push it out of DRAM
        node.save(node.prompt(name, 4))
        await node.store._demoter.flush()
    hanging = [
        asyncio.ensure_future(node.session.acquire(node.prompt(name, 2), skip=0, deadline_s=20.0))
        for name in range(MAX_READING + 4)
    ]
    await asyncio.sleep(0.1)
    got = []

    async def one():
        got.append(await node.acquire(node.prompt(100, 4)))

    assert await seconds(one()) < 2.0
    assert got[0].tiers == {"nvme": 4 * B}
    mount.gate.set()
    for each in await asyncio.gather(*hanging):
        node.session.release(each.lease)
    await node.close()


async def test_writes_that_hang_keep_their_source_and_no_request(mount):
    node = Node(8, over(mount))
    mount.gate.clear()
    node.save(node.prompt(1, 4))
    assert await seconds(node.acquire(node.prompt(1, 4))) < 1.0
    assert await node.store.flush(0.1) == 4
    node.store.check()
    mount.gate.set()
    assert await node.store.flush(10.0) == 0
    await node.close()


async def test_a_stop_does_not_wait_for_what_hangs(mount):
    node = Node(8, over(mount))
    mount.gate.clear()
    node.save(node.prompt(1, 4))
    assert await seconds(node.store.stop(0.2)) < 2.0
    node.store.close()
    assert await node.tier.get([ask(record(1))], deadline_s=1) == [Miss()]
    mount.gate.set()
