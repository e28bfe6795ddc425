"""A device that hangs costs a deadline, never more; and nobody's memory is touched after it was said to be free."""

import asyncio
import time

import numpy as np
import pytest
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Stored

from .shelf import GatedFiles, as_killed, held, key, numbers, open_tier, record, wanted

pytestmark = pytest.mark.unit


@pytest.fixture
def files():
    made = GatedFiles()
    yield made
    made.gate.set()


async def filled(path, files, count=12, **options):
    tier = open_tier(path, files=files, **options)
    for number in range(count):
        assert await tier.put([record(number)], deadline_s=10) == [Stored()]
    return tier


async def settled(until: asyncio.Event) -> None:
    await asyncio.wait_for(until.wait(), 10)


async def test_a_slow_read_is_given_up_at_once_and_its_memory_is_free_later(tmp_path, files):
    tier = await filled(tmp_path / "a", files)
    files.held = {"preadv"}
    one = wanted(record(3))
    began = time.monotonic()
    (answer,) = await tier.get([one], deadline_s=0.05)
    assert time.monotonic() - began < 2
    assert answer.reason == "deadline"
    assert not answer.until.is_set()
    assert not one.into.any()
    files.gate.set()
    await settled(answer.until)
    one.into[:] = 0
    await asyncio.sleep(0.05)
    assert not one.into.any()  # it was free
    files.held = set()
    assert await held(tier, [record(3)]) == 1  # late, not lost
    await tier.close()


async def test_what_had_not_begun_when_time_was_up_never_begins(tmp_path, files):
    tier = await filled(tmp_path / "a", files, threads=1)
    files.held = {"preadv"}
    first, second = wanted(record(0)), wanted(record(7))
    reading = asyncio.create_task(tier.get([first], deadline_s=10))
    await asyncio.to_thread(files.arrived.acquire)
    (answer,) = await tier.get([second], deadline_s=0.05)
    assert answer == Failed("deadline")  # no `until`: the memory is the caller's again
    files.gate.set()
    assert isinstance((await reading)[0], Hit)
    await asyncio.sleep(0.05)
    assert not second.into.any()
    await tier.close()


async def test_a_slow_write_is_given_up_and_does_not_show_up_later(tmp_path, files):
    """Its owner believes that it is not there: a copy that nobody knows of would never be dropped."""
    tier = await filled(tmp_path / "a", files, 1)
    files.held = {"pwritev"}
    one = record(5)
    (answer,) = await tier.put([one], deadline_s=0.05)
    assert answer.reason == "deadline"
    files.gate.set()
    await settled(answer.until)
    one.payload[:] = 0
    files.held = set()
    assert await tier.get([wanted(record(5))], deadline_s=10) == [Miss()]
    before = tier.usage()
    assert before.blocks == 1
    assert await tier.put([record(5)], deadline_s=10) == [Stored()]
    assert await held(tier, [record(5)]) == 1
    tier.check()
    await tier.close()


async def test_a_cancelled_read_ends_when_its_memory_is_free(tmp_path, files):
    tier = await filled(tmp_path / "a", files)
    files.held = {"preadv"}
    one = wanted(record(3))
    reading = asyncio.create_task(tier.get([one], deadline_s=10))
    await asyncio.to_thread(files.arrived.acquire)
    reading.cancel()
    await asyncio.sleep(0.05)
    assert not reading.done()
    files.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    one.into[:] = 0
    await asyncio.sleep(0.05)
    assert not one.into.any()
    await tier.close()


async def test_a_device_that_stays_slow_is_left_alone_and_tried_again(tmp_path, files):
    now = [100.0]
    tier = await filled(tmp_path / "a", files, clock=lambda: now[0])
    files.held = {"preadv"}
    answers = []
    for number in range(3):
        now[0] += 1.5
        answers += await tier.get([wanted(record(number))], deadline_s=0.02)
        now[0] += 1.5
        answers += await tier.get([wanted(record(number + 3))], deadline_s=0.02)
    assert answers[-1] == Failed("breaker")
    assert "slow" in tier.devices()[0].state
    began = time.monotonic()
    assert await tier.get([wanted(record(11))], deadline_s=5) == [Failed("breaker")]
    assert time.monotonic() - began < 1  # at once
    assert (await tier.put([record(50)], deadline_s=5)) == [Failed("breaker")]
    files.gate.set()
    for answer in answers:
        if answer.reason == "deadline" and answer.until is not None:
            await settled(answer.until)
    files.held = set()
    now[0] += 61
    assert await held(tier, [record(11)]) == 1  # the probe
    assert tier.devices()[0].state == "ok"
    assert await held(tier, [record(number) for number in range(12)]) == 12
    await tier.close()


async def test_an_impatient_caller_does_not_put_a_quick_device_out_of_use(tmp_path, files):
    tier = await filled(tmp_path / "a", files)
    for _ in range(20):
        answers = await tier.get([wanted(record(3))], deadline_s=0)
        for answer in answers:
            if isinstance(answer, Failed) and answer.until is not None:
                await settled(answer.until)
    assert tier.devices()[0].state == "ok"
    assert await held(tier, [record(3)]) == 1
    await tier.close()


async def test_one_paths_trouble_is_not_the_others(tmp_path, files):
    class HalfHung(GatedFiles):
        def open_segment(self, path, access, *, direct):
            handle = super().open_segment(path, access, direct=direct)
            self.held = {"preadv"} if self.hang and path.parent.name == "a" else set()
            return handle

        hang = False

    files = HalfHung()
    tier = open_tier(tmp_path / "a", tmp_path / "b", files=files)
    records = [record(number) for number in range(100)]
    for at in range(0, 100, 5):
        assert await tier.put(records[at : at + 5], deadline_s=10) == [Stored()] * 5
    files.hang = True
    answers = await tier.get([wanted(each) for each in records], deadline_s=1)
    hits = sum(isinstance(answer, Hit) for answer in answers)
    assert 20 < hits < 80
    assert all(answer.reason == "deadline" for answer in answers if not isinstance(answer, Hit))
    files.gate.set()
    await asyncio.gather(*(settled(a.until) for a in answers if isinstance(a, Failed) and a.until is not None))
    await tier.close()


async def test_flush_and_close_do_not_wait_for_a_device_that_hangs(tmp_path, files, monkeypatch):
    monkeypatch.setattr("kvterrace.kvstore.tiers.nvme.tier.CLOSE_S", 0.2)
    tier = await filled(tmp_path / "a", files, 3)
    files.held = {"pwritev"}
    put = asyncio.create_task(tier.put([record(9)], deadline_s=30))
    await asyncio.to_thread(files.arrived.acquire)
    await tier.drop([key(0)])
    assert await tier.flush(deadline_s=0.1) is False
    began = time.monotonic()
    await tier.close()
    assert time.monotonic() - began < 5
    files.gate.set()
    await put
    again = open_tier(as_killed(tmp_path / "a", tmp_path / "b"))
    assert numbers(again) >= {1, 2}
    await again.close()


async def test_a_thousand_requests_at_once_end(tmp_path, files):
    """Ten times what the store would ever have under way."""
    tier = await filled(tmp_path / "a", files, 40)
    rng = np.random.default_rng(0)
    batches = [[int(n) for n in rng.integers(0, 45, 4)] for _ in range(1000)]
    answers = await asyncio.gather(*(tier.get([wanted(record(n)) for n in batch], deadline_s=60) for batch in batches))
    for batch, got in zip(batches, answers, strict=True):
        assert [isinstance(answer, Hit) for answer in got] == [n < 40 for n in batch]
    await tier.close()
