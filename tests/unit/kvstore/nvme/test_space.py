"""Caps hold at every moment, space comes back, and the device is not worn out for it."""

import asyncio
import random

import pytest
from kvterrace.kvstore.tiers import Failed, Rejected, Stored
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier

from .shelf import (
    CAPACITY_BYTES,
    RECORD_BYTES,
    SEGMENT_BYTES,
    GatedFiles,
    as_killed,
    files_bytes,
    held,
    key,
    numbers,
    open_tier,
    record,
    same,
    segments,
    wanted,
)

pytestmark = pytest.mark.unit
DAY_S = 86_400


class Churn:
    """Puts new blocks for ever, dropping as the tier's usage says: what the store does."""

    def __init__(self, tier, pick) -> None:
        self.tier = tier
        self.pick = pick  # index of the next victim among the blocks kept, oldest first
        self.kept: list[int] = []
        self.next = 0

    async def step(self, count: int = 3) -> list:
        usage = self.tier.usage()
        while self.kept and usage.live_bytes + count * RECORD_BYTES > usage.live_limit_bytes:
            gone = self.kept.pop(self.pick(len(self.kept)))
            await self.tier.drop([key(gone)])
            usage = self.tier.usage()
        batch = list(range(self.next, self.next + count))
        self.next += count
        answers = await self.tier.put([record(number) for number in batch], deadline_s=30)
        self.kept += [number for number, answer in zip(batch, answers, strict=True) if answer == Stored()]
        return answers


@pytest.mark.parametrize("order", ["oldest", "random", "youngest"])
async def test_a_full_tier_takes_new_blocks_for_ever_within_its_cap(tmp_path, order):
    rng = random.Random(7)
    pick = {"oldest": lambda n: 0, "random": rng.randrange, "youngest": lambda n: n - 1}[order]
    tier = open_tier(tmp_path / "a")
    churn = Churn(tier, pick)
    for _ in range(160):
        assert await churn.step() == [Stored()] * 3
        assert files_bytes(tmp_path / "a") <= tier.usage().used_bytes <= CAPACITY_BYTES
    tier.check()
    assert len(churn.kept) > 100  # it was full, not empty
    assert await held(tier, [record(number) for number in churn.kept]) == len(churn.kept)
    (device,) = tier.devices()
    assert device.accepted_bytes == 480 * RECORD_BYTES
    assert device.written_bytes < {"oldest": 1.6, "random": 4.5, "youngest": 4.5}[order] * device.accepted_bytes
    await tier.close()
    again = open_tier(tmp_path / "a")
    assert numbers(again) == set(churn.kept)
    await again.close()


async def test_moved_records_keep_their_age_and_their_retention(tmp_path):
    tier = open_tier(tmp_path / "a")
    churn = Churn(tier, random.Random(3).randrange)
    while not tier.devices()[0].written_bytes > 1.2 * tier.devices()[0].accepted_bytes:
        await churn.step()
    path = as_killed(tmp_path / "a", tmp_path / "b")
    again = open_tier(path)
    (found,) = again.inventory()
    order = [int(ids[0]) for ids in found.tokens]
    kept = [number for number in order if number in set(churn.kept)]
    assert kept == sorted(churn.kept)
    assert found.priority.tolist() == [number % 101 for number in order]
    assert found.ttl_s.tolist() == [number % 2 * 60.5 for number in order]
    await tier.close()
    await again.close()


async def test_reading_goes_on_while_segments_are_reclaimed(tmp_path):
    tier = open_tier(tmp_path / "a")
    churn = Churn(tier, random.Random(5).randrange)
    for _ in range(60):
        assert await churn.step() == [Stored()] * 3
    wrong = []

    async def read_for_ever():
        while True:
            picked = churn.kept[:: max(1, len(churn.kept) // 9)]
            records = [record(number) for number in picked]
            asked = [wanted(each) for each in records]
            answers = await tier.get(asked, deadline_s=30)
            for one, want, answer in zip(records, asked, answers, strict=True):
                if type(answer).__name__ == "Hit":
                    wrong.extend([] if same(want, one) else [one])
                elif type(answer).__name__ == "Failed":
                    wrong.append(answer)

    reader = asyncio.create_task(read_for_ever())
    for _ in range(100):
        await churn.step()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert wrong == []
    assert tier.devices()[0].written_bytes > 1.2 * tier.devices()[0].accepted_bytes  # it did reclaim
    await tier.close()


async def test_full_says_full_and_names_the_limit_that_one_can_stay_below(tmp_path):
    tier = open_tier(tmp_path / "a")
    answers = []
    for number in range(400):
        before = tier.usage()
        answers += await tier.put([record(number)], deadline_s=10)
        fits = before.live_bytes + RECORD_BYTES + 4096 <= before.live_limit_bytes
        assert not fits or answers[-1] == Stored()
    stored = answers.count(Stored())
    assert answers == [Stored()] * stored + [Rejected("full")] * (400 - stored)
    assert stored * RECORD_BYTES > CAPACITY_BYTES * 0.5
    await tier.close()


async def test_what_is_left_of_the_file_system_is_left(tmp_path):
    class Small(GatedFiles):
        free = 3 * SEGMENT_BYTES

        def free_bytes(self, path):
            return self.free - files_bytes(path)

    files = Small()
    where = NvmePath(tmp_path / "a", CAPACITY_BYTES, min_free_bytes=SEGMENT_BYTES)
    tier = NvmeTier.open([where], files=files, segment_bytes=SEGMENT_BYTES)
    answers = [(await tier.put([record(number)], deadline_s=10))[0] for number in range(80)]
    assert answers[0] == Stored()
    assert answers[-1] == Rejected("full")
    assert files.free_bytes(tmp_path / "a") >= SEGMENT_BYTES
    assert tier.devices()[0].state == "ok"
    files.free += 10 * SEGMENT_BYTES
    assert await tier.put([record(99)], deadline_s=10) == [Stored()]
    await tier.close()


async def test_the_days_budget_holds_across_a_kill_and_ends_with_the_day(tmp_path):
    now = [DAY_S * 20_000.0]
    daily = 40 * RECORD_BYTES
    options = {"daily": daily, "wall": lambda: now[0], "clock": lambda: now[0]}
    tier = open_tier(tmp_path / "a", **options)
    answers = [(await tier.put([record(number)], deadline_s=10))[0] for number in range(60)]
    stored = answers.count(Stored())
    assert answers == [Stored()] * stored + [Rejected("budget")] * (60 - stored)
    assert 25 <= stored <= 40
    assert tier.devices()[0].written_bytes <= daily
    assert tier.devices()[0].budget_left_bytes < RECORD_BYTES + daily // 8
    await tier.flush(deadline_s=10)
    killed = open_tier(as_killed(tmp_path / "a", tmp_path / "b"), **options)
    assert await killed.put([record(100)], deadline_s=10) == [Rejected("budget")]
    assert await held(killed, [record(number) for number in range(stored)]) == stored  # reading is free
    now[0] += DAY_S
    assert await killed.put([record(100)], deadline_s=10) == [Stored()]
    await tier.close()
    await killed.close()


async def test_reclaiming_stops_with_the_budget(tmp_path):
    daily = 3 * CAPACITY_BYTES
    tier = open_tier(tmp_path / "a", daily=daily)
    churn = Churn(tier, random.Random(5).randrange)
    answers = [Stored()]
    while answers[-1] == Stored():
        answers = await churn.step()
    assert answers[-1] == Rejected("budget")
    for number in churn.kept[::2]:
        await tier.drop([key(number)])
        await asyncio.sleep(0)
    assert await tier.put([record(5000)], deadline_s=10) == [Rejected("budget")]
    assert tier.devices()[0].written_bytes <= daily
    await tier.close()


async def test_a_smaller_cap_takes_effect_at_the_start(tmp_path):
    tier = open_tier(tmp_path / "a")
    for number in range(0, 90, 6):
        await tier.put([record(each) for each in range(number, number + 6)], deadline_s=10)
    await tier.close()
    small = 4 * SEGMENT_BYTES
    again = open_tier(tmp_path / "a", capacity_bytes=small)
    assert files_bytes(tmp_path / "a") <= again.usage().used_bytes <= small
    left = numbers(again)
    assert left == set(range(90 - len(left), 90))  # the youngest
    assert await again.put([record(500)], deadline_s=10) in ([Stored()], [Rejected("full")])
    again.check()
    await again.close()


async def test_more_than_may_wait_is_busy_and_not_queued_without_end(tmp_path):
    files = GatedFiles()
    tier = open_tier(tmp_path / "a", files=files, max_pending_bytes=6 * RECORD_BYTES)
    await tier.put([record(0)], deadline_s=10)
    files.held = {"pwritev"}
    puts = asyncio.create_task(tier.put([record(number) for number in range(1, 21)], deadline_s=10))
    await asyncio.sleep(0.05)
    files.gate.set()
    answers = await puts
    stored = answers.count(Stored())
    assert answers == [Stored()] * stored + [Rejected("busy")] * (20 - stored)
    assert stored == 6
    assert await tier.put([record(30)], deadline_s=10) == [Stored()]
    await tier.close()


async def test_a_record_larger_than_a_segment_is_too_large(tmp_path):
    tier = open_tier(tmp_path / "a")
    assert await tier.put([record(1, SEGMENT_BYTES), record(2)], deadline_s=10) == [Rejected("too_large"), Stored()]
    largest = SEGMENT_BYTES - 8 * 4096
    assert await tier.put([record(3, largest)], deadline_s=10) == [Stored()]
    assert await held(tier, [record(3, largest), record(2)]) == 2
    await tier.close()


async def test_two_paths_share_the_work_and_the_blocks(tmp_path):
    tier = open_tier(tmp_path / "a", tmp_path / "b")
    records = [record(number) for number in range(150)]
    for at in range(0, 150, 10):
        assert await tier.put(records[at : at + 10], deadline_s=10) == [Stored()] * 10
    assert min(len(segments(tmp_path / name)) for name in "ab") > 1
    assert await held(tier, records) == 150
    assert tier.usage().capacity_bytes == 2 * CAPACITY_BYTES
    await tier.close()
    again = open_tier(tmp_path / "b", tmp_path / "a")  # in any order
    assert numbers(again) == set(range(150))
    await again.close()
    half = open_tier(tmp_path / "a")
    assert 0 < half.usage().blocks < 150
    await half.close()


async def test_the_same_block_put_twice_at_once_is_kept_once(tmp_path):
    tier = open_tier(tmp_path / "a")
    puts = [tier.put([record(number) for number in (1, 2, 1)], deadline_s=10) for _ in range(8)]
    assert await asyncio.gather(*puts) == [[Stored()] * 3] * 8
    assert tier.usage().blocks == 2
    assert tier.usage().live_bytes == 2 * RECORD_BYTES
    tier.check()
    await tier.close()


async def test_a_payload_with_another_checksum_is_refused_alone(tmp_path):
    tier = open_tier(tmp_path / "a")
    answers = await tier.put([record(1), record(2, checksum=5), record(3)], deadline_s=10)
    assert answers == [Stored(), Rejected("corrupt"), Stored()]
    again = open_tier(as_killed(tmp_path / "a", tmp_path / "b"))
    assert numbers(again) == {1, 3}
    assert not isinstance((await tier.get([wanted(record(2))], deadline_s=1))[0], Failed)
    await tier.close()
    await again.close()
