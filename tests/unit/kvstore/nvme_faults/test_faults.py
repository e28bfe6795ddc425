"""A disk that goes wrong at the k-th call of each operation: an answer each time, no wrong byte, and it recovers."""

import asyncio
import dataclasses
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Rejected, Stored
from kvterrace.kvstore.tiers.codec import PlanesLz4
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import Retention

from .blocks import fingerprint, is_right, key, record, wanted
from .disk import PAGE, MemoryDisk
from .faults import Fault, FaultyFiles

pytestmark = pytest.mark.unit

WHERE = Path("/disk")
SEGMENT_BYTES = 32 * PAGE
CAPACITY_BYTES = 8 * SEGMENT_BYTES
FOR_EVER = 1 << 30
DEADLINE_S = 10.0
HANGS_S = 30.0
CALLS = 3  # of each operation that are struck, spread over all of a run

KINDS = {
    "preadv": ("EIO", "short", "none", "flip"),
    "pwritev": ("EIO", "ENOSPC", "EROFS", "short", "none", "flip", "lost"),
    "fallocate": ("EIO", "ENOSPC", "EOPNOTSUPP"),
    "open_segment": ("EIO", "ENOENT", "EMFILE"),
    **dict.fromkeys(("fdatasync", "truncate", "unlink", "sync_directory", "free_bytes", "close", "rename"), ("EIO",)),
}
LOSES_SILENTLY = {"flip", "lost", "none", "short"}  # the tier cannot know, or takes it for the end of the file


class Run:
    """A tier on a disk in memory with faults, its clock, and what it owes. All verbs are held to an answer in time."""

    def __init__(self, fault: Fault | None = None, disk: MemoryDisk | None = None, **options: object) -> None:
        self.disk = disk or MemoryDisk()
        self.mount = self.disk.mount()
        self.files = FaultyFiles(self.mount, fault)
        self.now = 1000.0
        self.owed: set[int] = set()
        self.flushed: set[int] = set()
        self._options = options

    def open(self) -> None:
        path = NvmePath(WHERE, CAPACITY_BYTES, 0, daily_write_bytes=1 << 30)
        clocks = {"clock": lambda: self.now, "wall": lambda: self.now}
        options = {"codec": PlanesLz4(), "segment_bytes": SEGMENT_BYTES, "threads": 2} | clocks | self._options
        self.tier = NvmeTier.open([path], files=self.files, **options)

    async def put(self, numbers) -> list[object]:
        records = [record(number) for number in numbers]
        answers = await asyncio.wait_for(self.tier.put(records, deadline_s=DEADLINE_S), HANGS_S)
        for number, answer in zip(numbers, answers, strict=True):
            assert isinstance(answer, Stored | Rejected | Failed)
            if isinstance(answer, Stored):
                self.owed.add(number)
        return answers

    async def get(self, numbers) -> list[object]:
        asked = [wanted(number) for number in numbers]
        answers = await asyncio.wait_for(self.tier.get(asked, deadline_s=DEADLINE_S), HANGS_S)
        for number, want, answer in zip(numbers, asked, answers, strict=True):
            assert isinstance(answer, Hit | Miss | Failed)
            assert not isinstance(answer, Hit) or is_right(want, number), number
            if answer in {Failed("io"), Failed("corrupt")}:
                self.owed.discard(number)  # given up, so that nobody waits for it again
                self.flushed.discard(number)
        return answers

    async def drop(self, numbers) -> None:
        await self.tier.drop([key(number) for number in numbers])
        self.owed.difference_update(numbers)
        self.flushed.difference_update(numbers)

    async def flush(self) -> None:
        owed = set(self.owed)
        if await asyncio.wait_for(self.tier.flush(deadline_s=DEADLINE_S), HANGS_S):
            self.flushed = owed

    async def work(self) -> None:
        """Blocks come and go until segments are sealed and reclaimed."""
        for first in range(0, 96, 8):
            await self.put(range(first, first + 8))
            if first >= 24:
                await self.drop(range(first - 24, first - 17))
                await self.get(range(first - 17, first + 8))
            if first % 32 == 0:
                await self.flush()
            await asyncio.sleep(0)
        await self.tier.clear(fingerprint(1))
        self.owed = {number for number in self.owed if fingerprint(number) != fingerprint(1)}
        self.flushed &= self.owed
        await self.get(range(96))

    async def close(self) -> None:
        await asyncio.wait_for(self.tier.close(), HANGS_S)
        assert self.disk.peak_bytes <= CAPACITY_BYTES


counted: Counter[str] = Counter()


async def struck(operation: str) -> list[int]:
    """Calls of a run, as counted in one without faults."""
    if not counted:
        run = Run()
        run.open()
        await run.work()
        await run.close()
        counted.update(run.files.calls)
    return sorted({int(at) for at in np.linspace(0, max(0, counted[operation] - 1), CALLS)})


async def reopen(disk: MemoryDisk, owed: set[int], *, lossy: bool) -> None:
    """On the healthy disk: everything owed is there, and everything that is there is right."""
    after = Run(disk=disk)
    after.open()
    listed = {int(part.tokens[n][0]) for part in after.tier.inventory() for n in range(len(part.keys))}
    answers = await after.get(range(96))
    for number, answer in enumerate(answers):
        assert number not in owed or lossy or isinstance(answer, Hit), (number, answer)
        assert lossy or (number in listed) is isinstance(answer, Hit)
    after.tier.check()
    await after.close()
    assert not after.mount.handles


@pytest.mark.parametrize("times", [1, FOR_EVER])
@pytest.mark.parametrize(("operation", "kind"), [(name, kind) for name, kinds in KINDS.items() for kind in kinds])
async def test_a_fault_at_any_call_is_an_answer_and_costs_no_more_than_itself(operation, kind, times):
    for at in await struck(operation):
        run = Run(Fault(operation, at, kind, times=times))
        run.open()
        await run.work()
        if run.files.fault.fired == 0:
            continue  # threads took another order this time
        run.files.fault = None
        for _ in range(4):
            run.now += 120.0  # back-off over
            await run.drop(sorted(run.owed)[: len(run.owed) // 2])
            answers = [await run.put([number]) for number in (200, 201)]
        assert answers == [[Stored()], [Stored()]], (at, run.tier.devices()[0].state)
        await run.get([200])  # the probe of a device that could not be read
        assert all(isinstance(answer, Hit) for answer in await run.get([200, 201]))
        run.tier.check()
        await run.close()
        assert not run.mount.handles, (at, "leaked")
        await reopen(run.disk, run.owed - {200, 201}, lossy=kind in LOSES_SILENTLY)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize(
    "operation",
    ["pwritev", "fdatasync", "truncate", "unlink", "fallocate", "open_segment", "sync_directory", "rename"],
)
async def test_a_crash_at_any_call_costs_nothing_that_was_stored(operation, power):
    """The process ends in the middle of the call, half of its bytes written; power: and what was not synced is lost."""
    for at in await struck(operation):
        fault = Fault(operation, at, "crash")
        run = Run(fault)
        rng = random.Random(at)
        end = (lambda run=run, rng=rng: run.disk.power_cut(run.mount, rng)) if power else None
        fault.on_crash = end or (lambda run=run: run.disk.crash(run.mount))
        run.open()
        await run.work()
        owed = run.flushed if power else run.owed
        await run.close()
        await reopen(run.disk, owed, lossy=False)


async def test_a_block_that_is_replaced_is_there_in_one_form_or_the_other_after_a_power_cut(monkeypatch):
    """That the old copy is dead must not reach the disk before the new one has."""
    monkeypatch.setattr("kvterrace.kvstore.tiers.nvme.safety.MARK_DELAY_S", 0.01)
    for seed in range(12):
        run = Run()
        run.open()
        await run.put(range(6))
        await run.flush()
        newer = [dataclasses.replace(record(n), retention=Retention(priority=99), replace=True) for n in range(6)]
        assert await run.tier.put(newer, deadline_s=DEADLINE_S) == [Stored()] * 6
        await asyncio.sleep(0.05)
        run.disk.power_cut(run.mount, random.Random(seed))
        await run.close()
        await reopen(run.disk, run.flushed, lossy=False)


async def test_a_disk_that_cannot_seal_is_not_written_full_again_and_again():
    """Each try to reclaim writes a segment, and fails at its end: there must be few of them."""
    run = Run(Fault("truncate", 0, "EIO", times=FOR_EVER))
    run.open()
    await run.work()
    await asyncio.sleep(0.3)
    assert run.files.fault.fired
    assert run.files.fault.fired < 100, "it tries again at once"
    run.files.fault = None
    await run.close()


@pytest.mark.parametrize("operation", ["preadv", "open_segment", "lock", "listdir", "mkdir", "size", "truncate"])
async def test_a_disk_that_fails_at_the_start_is_no_reason_not_to_start(operation):
    for times in (1, FOR_EVER):
        before = Run()
        before.open()
        await before.put(range(12))
        await before.flush()
        before.disk.crash(before.mount)
        await before.close()
        run = Run(Fault(operation, 0, "EIO", times=times), disk=before.disk)
        run.open()  # NvmeError would be for what the user can mend
        assert run.files.fault.fired
        await run.get(range(12))
        await run.put(range(12, 24))
        await run.close()
        run.disk.crash(run.mount)
        await reopen(before.disk, before.flushed, lossy=False)


async def test_a_read_that_hangs_costs_its_deadline_and_the_next_ones_nothing():
    run = Run(slow_s=0.1, clock=time.monotonic)
    run.open()
    await run.put(range(12))
    run.files.fault = Fault("preadv", 0, "slow", times=FOR_EVER)
    began = time.monotonic()
    untils = []
    for _ in range(12):
        asked = wanted(0)
        (answer,) = await run.tier.get([asked], deadline_s=0.1)
        assert isinstance(answer, Failed)
        if answer.reason == "breaker":
            break
        assert answer.reason == "deadline"
        if answer.until is not None:
            untils.append(answer.until)
    assert answer == Failed("breaker"), "reads go on to a device that does not answer"
    assert untils, "the memory is still in the device's hands"
    assert not any(until.is_set() for until in untils)
    assert time.monotonic() - began < 4.0
    assert "slow" in run.tier.devices()[0].state
    run.files.fault.release.set()
    await asyncio.wait_for(asyncio.gather(*(until.wait() for until in untils)), 10.0)
    await asyncio.sleep(1.1)  # the first back-off
    answers = await run.get([0])
    assert isinstance(answers[0], Hit)
    assert run.tier.devices()[0].state == "ok"
    await run.close()


async def test_a_write_that_hangs_costs_its_deadline_and_is_not_visible_afterwards():
    run = Run(slow_s=0.1, clock=time.monotonic)
    run.open()
    await run.put(range(4))
    fault = run.files.fault = Fault("pwritev", run.files.calls["pwritev"], "slow", times=FOR_EVER)
    began = time.monotonic()
    (answer,) = await run.tier.put([record(50)], deadline_s=0.1)
    assert (answer.reason, time.monotonic() - began < 2.0) == ("deadline", True)
    assert all(isinstance(each, Hit) for each in await run.get(range(4)))  # reads do not wait for writes
    fault.release.set()
    if answer.until is not None:
        await asyncio.wait_for(answer.until.wait(), 10.0)
    await asyncio.sleep(0.05)
    assert await run.get([50]) == [Miss()]  # whoever was told that it failed may have written something else meanwhile
    run.files.fault = None
    await asyncio.sleep(1.1)
    assert await run.put([50]) == [Stored()]
    assert isinstance((await run.get([50]))[0], Hit)
    await run.close()


async def test_close_comes_back_although_the_device_does_not(monkeypatch):
    monkeypatch.setattr("kvterrace.kvstore.tiers.nvme.tier.CLOSE_S", 0.5)
    run = Run(slow_s=0.1, clock=time.monotonic)
    run.open()
    await run.put(range(4))
    run.files.fault = Fault("pwritev", run.files.calls["pwritev"], "slow", times=FOR_EVER)
    began = time.monotonic()
    await asyncio.wait_for(run.tier.close(), HANGS_S)
    assert time.monotonic() - began < 3.0
    run.files.fault.release.set()


async def test_no_o_direct_is_said_once_and_costs_nothing_else(caplog):
    run = Run(disk=MemoryDisk(direct=False))
    run.open()
    await run.work()
    assert run.owed
    assert not run.tier.devices()[0].direct
    await run.close()
    await reopen(run.disk, run.owed, lossy=False)
    assert sum("no direct I/O" in each.message for each in caplog.records) == 2  # once for each opening


async def test_one_dead_device_leaves_the_others_at_work_and_its_blocks_come_back_with_it():
    disk, two = MemoryDisk(), Path("/other")
    paths = [NvmePath(WHERE, CAPACITY_BYTES, 0), NvmePath(two, CAPACITY_BYTES, 0)]

    def opened(fault: Fault | None = None):
        mount = disk.mount()
        return mount, NvmeTier.open(paths, files=FaultyFiles(mount, fault), segment_bytes=SEGMENT_BYTES)

    async def put(tier, numbers) -> None:
        for number in numbers:
            assert await tier.put([record(number)], deadline_s=DEADLINE_S) == [Stored()]

    _, tier = opened()
    await put(tier, range(24))
    await tier.close()
    assert all(any(path.parent == where for path in disk.files() if path.suffix == ".seg") for where in (WHERE, two))
    _, tier = opened(Fault("mkdir", 1, "EIO"))  # the second path's
    states = [each.state for each in tier.devices()]
    assert (states[0], states[1] == "ok") == ("ok", False)
    kept = tier.usage().blocks
    assert 0 < kept < 24
    await put(tier, range(24, 48))
    await tier.drop([key(number) for number in range(24, 40)])
    await tier.close()
    _, tier = opened()
    asked = [wanted(number) for number in [*range(24), *range(40, 48)]]
    answers = await tier.get(asked, deadline_s=DEADLINE_S)
    assert all(isinstance(answer, Hit) for answer in answers), answers
    await tier.close()
