"""A store with a tier below DRAM: what is written down, what comes back up, and what a misbehaving tier does."""

import asyncio
import random

import pytest
from kvterrace.kvstore.placement.admission import SecondHit
from kvterrace.kvstore.tiers import Failed, Miss, Rejected
from kvterrace.proto import Retention, RetentionRange

pytestmark = pytest.mark.unit

B = 4  # tokens of a block
PAGE = 4096


async def test_what_left_dram_comes_back_from_below_with_its_bytes(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    got = await b.acquire(b.prompt(1, 7), skip=1)
    assert (len(got.slots), got.tiers, got.reason) == (5, {"nvme": 5 * B}, "never_seen")
    assert b.counters.hit_tokens["nvme"] == 5 * B
    again = await b.acquire(b.prompt(1, 7))
    assert again.tiers == {"dram": 6 * B}, "it was brought up, and stays"


async def test_without_time_to_wait_there_is_only_dram(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    got = await b.acquire(b.prompt(1, 6), deadline_s=0)
    assert (len(got.slots), got.reason, b.tier.asked) == (0, "deadline", [])


async def test_look_up_names_the_tiers_and_moves_nothing(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(5)
    found = b.session.lookup(b.prompt(1, 9))
    assert found.tiers == {"dram": 3 * B, "nvme": 3 * B}
    assert (found.reason, b.tier.asked) == ("never_seen", [])


async def test_a_block_is_read_once_whoever_waits_for_it(lower):
    b = lower(16)
    await b.saved(b.prompt(1, 6))
    await b.push_out(16)
    b.tier.gate.clear()
    asks = [asyncio.create_task(b.acquire(b.prompt(1, 4 + n))) for n in range(3)]
    await asyncio.sleep(0.01)
    b.tier.gate.set()
    got = await asyncio.gather(*asks)
    assert [len(each.slots) for each in got] == [4, 5, 6]
    assert len(b.tier.asked) == len(set(b.tier.asked)) == 6


async def test_a_deadline_ends_the_wait_and_the_blocks_are_there_for_the_next(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.tier.gate.clear()
    began = asyncio.get_running_loop().time()
    got = await b.acquire(b.prompt(1, 6), deadline_s=0.05)
    assert asyncio.get_running_loop().time() - began < 1
    assert (len(got.slots), got.reason) == (0, "deadline")
    b.tier.gate.set()
    await b.store._promoter.settled()
    assert (await b.acquire(b.prompt(1, 6), deadline_s=0)).tiers == {"dram": 6 * B}


async def test_slots_that_a_hung_device_may_still_write_to_are_nobody_elses(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 4))
    await b.push_out(8)
    late = asyncio.Event()
    b.tier.trouble = Failed("deadline", late)
    got = await b.acquire(b.prompt(1, 4))
    assert (len(got.slots), got.reason) == (0, "deadline")
    assert b.store.stats().tiers[0].reserved_bytes == 4 * PAGE, "held while the device may write"
    assert b.save(b.prompt(2, 8)) == 4, "only the other slots are given"
    late.set()
    await b.store._promoter.settled()
    assert b.store.stats().tiers[0].reserved_bytes == 0


@pytest.mark.parametrize(("answer", "reason"), [(Failed("corrupt"), "corrupt"), (Miss(), "evicted")])
async def test_what_the_tier_cannot_give_is_not_asked_for_twice(lower, answer, reason):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.tier.trouble = answer
    assert (await b.acquire(b.prompt(1, 6))).reason == reason
    await b.store._promoter.settled()
    asked = len(b.tier.asked)
    assert (await b.acquire(b.prompt(1, 6))).slots == ()
    assert len(b.tier.asked) == asked
    assert b.counters.failed_loads[reason] == 6


@pytest.mark.parametrize("reason", ["io", "breaker"])
async def test_a_failing_device_is_a_miss_and_is_asked_again_later(lower, reason):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.tier.trouble = Failed(reason)
    assert (await b.acquire(b.prompt(1, 6))).reason == reason
    b.tier.trouble = None
    assert (await b.acquire(b.prompt(1, 6))).tiers == {"nvme": 6 * B}


async def test_loading_what_is_slower_than_computing_is_left(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.session.observe([(0, 16, 1e-9), (0, 32, 2e-9), (0, 64, 4e-9), (16, 32, 2e-9), (0, 128, 8e-9)])
    for _ in range(4):
        b.store._io.observe("nvme", 4096, 1.0, "read")
    got = await b.acquire(b.prompt(1, 6))
    assert (len(got.slots), got.reason) == (0, "slower_to_load")


async def test_a_prompt_larger_than_dram_comes_up_as_far_as_there_is_room(lower):
    b = lower(8)
    for blocks in (6, 12, 18):
        await b.saved(b.prompt(1, blocks))
    got = await b.acquire(b.prompt(1, 18))
    assert 0 < len(got.slots) <= 8


async def test_one_off_prompts_are_not_written_when_only_second_hits_are(lower):
    b = lower(16, admission=SecondHit())
    await b.saved(b.prompt(1, 4))
    await b.saved(b.prompt(2, 4))
    assert not b.tier.records
    await b.acquire(b.prompt(2, 4))
    await b.store.flush(5.0)
    assert len(b.tier.records) == 4
    assert b.counters.dropped_demotions["not_admitted"] == 8


async def test_a_refused_write_is_counted_and_offered_again(lower):
    b = lower(16)
    b.tier.refusal = Rejected("budget")
    await b.saved(b.prompt(1, 4))
    assert b.counters.dropped_demotions["budget"] == 4
    b.tier.refusal = None
    await b.acquire(b.prompt(1, 4))
    await b.store.flush(5.0)
    assert len(b.tier.records) == 4


async def test_what_waits_to_be_written_is_bounded(lower):
    b = lower(32, backlog_share=0.25)
    b.tier.gate.clear()
    for name in range(6):
        b.save(b.prompt(name, 4))
        await asyncio.sleep(0)
    assert b.store.stats().tiers[1].reserved_bytes <= 8 * PAGE
    assert b.counters.dropped_demotions["backlog"] >= 4


async def test_the_tier_is_emptied_from_the_tips_and_keeps_within_its_limit(lower, fake_tier):
    tier = fake_tier()
    tier.limit = 8 * 2 * PAGE
    b = lower(32, tier)
    await b.saved(b.prompt(1, 6))
    await b.saved(b.prompt(2, 6))
    assert len(tier.records) == 8
    found = b.store._depot.of(b.session.fingerprint)
    assert len(found.index.match(b.prompt(2, 6))) == 6, "the newer prompt is whole"
    assert len(found.index.match(b.prompt(1, 6))) == 2, "the older one has lost its tail, not its head"


async def test_a_restarted_store_serves_what_the_tier_has(lower, fake_tier):
    tier = fake_tier()
    first = lower(16, tier)
    await first.saved(first.prompt(1, 6))
    await first.saved(first.prompt(1, 3) + first.prompt(2, 3))
    second = lower(16, tier)
    assert (await second.acquire(second.prompt(1, 8))).tiers == {"nvme": 6 * B}
    assert (await second.acquire(second.prompt(1, 3) + second.prompt(2, 3))).tiers == {"dram": 3 * B, "nvme": 3 * B}


async def test_after_a_restart_what_was_written_first_leaves_first(lower, fake_tier):
    tier = fake_tier()
    first = lower(64, tier)
    for name in range(1, 5):
        await first.saved(first.prompt(name, 4))
    await first.saved(first.prompt(4, 2) + first.prompt(5, 2))
    tier.limit = len(tier.records) * 2 * PAGE
    second = lower(64, tier)
    await second.saved(second.prompt(6, 8))
    found = second.store._depot.of(second.session.fingerprint).index
    kept = [len(found.match(second.prompt(name, 4))) for name in range(1, 5)]
    assert kept == [0, 0, 4, 4]
    assert len(found.match(second.prompt(4, 2) + second.prompt(5, 2))) == 4


async def test_a_flush_that_was_not_done_in_time_says_so_whatever_holds_the_blocks(lower):
    b = lower(16)
    b.tier.gate.clear()
    b.save(b.prompt(1, 4))
    await asyncio.sleep(0.01)  # by now the device has them in hand
    assert await b.store.flush(0.02) == 4
    b.tier.gate.set()
    assert await b.store.flush(5.0) == 0


async def test_retention_goes_down_comes_back_and_outlives_the_store(lower, fake_tier):
    tier = fake_tier()
    b = lower(8, tier)
    keep = Retention(priority=90, ttl_s=3600.0, pinned=True)
    await b.saved(b.prompt(1, 4), retention=[RetentionRange(0, 2, keep)])
    assert [r.retention for r in tier.records.values()] == [keep, keep, Retention(), Retention()]
    second = lower(8, tier)
    await second.acquire(second.prompt(1, 4))
    index = second.session._space.index
    said = index.retention(index.match(second.prompt(1, 4)).blocks)
    assert said.priority.tolist() == [90, 90, 50, 50]
    assert said.pinned.tolist() == [True, True, False, False]


async def test_clear_reaches_every_tier(lower):
    b = lower(16)
    await b.saved(b.prompt(1, 6))
    assert await b.store.clear() == 6
    assert not b.tier.records
    assert (await b.acquire(b.prompt(1, 6))).reason == "cleared"


async def test_what_was_being_written_when_the_store_was_cleared_does_not_come_back(lower):
    b = lower(16)
    b.tier.gate.clear()
    b.save(b.prompt(1, 6))
    await asyncio.sleep(0.01)
    await b.store.clear()
    b.tier.gate.set()
    await b.store.flush(5.0)
    assert not b.tier.records
    assert not len(b.store._depot.of(b.session.fingerprint) or ())


async def test_a_prefetched_prefix_is_in_dram_when_its_request_comes(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.session.prefetch(7, b.prompt(1, 6), skip=0)
    await b.store._promoter.settled()
    b.session.cancel_prefetch(7)
    assert (await b.acquire(b.prompt(1, 6), deadline_s=0)).tiers == {"dram": 6 * B}
    assert b.counters.prefetched_blocks["used"] == 6


async def test_a_cancelled_prefetch_that_has_not_begun_reads_nothing(lower):
    b = lower(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.session.prefetch(7, b.prompt(1, 6), skip=0)
    b.session.prefetch(8, b.prompt(1, 6), skip=0)
    asked = len(b.tier.asked)
    b.session.close()
    await b.store._promoter.settled()
    assert len(b.tier.asked) in (asked, 6)
    b.store.check()


async def test_exclusive_writes_what_is_about_to_leave_and_drops_what_came_up(lower):
    b = lower(32, exclusive=True)
    await b.saved(b.prompt(1, 8))
    assert not b.tier.records, "nothing is written while there is room"
    for name in range(2, 6):
        b.save(b.prompt(name, 8))
        await b.store.flush(5.0)
    assert b.tier.records
    gone = next(name for name in range(1, 6) if len(b.session._space.index.match(b.prompt(name, 8))) < 8)
    got = await b.acquire(b.prompt(gone, 8))
    await b.store._promoter.settled()
    assert len(got.slots) == 8, "nothing was lost on the way down"
    assert "nvme" in got.tiers


async def test_a_stop_writes_what_only_dram_has(lower, fake_tier):
    tier = fake_tier()
    b = lower(32, tier, exclusive=True)
    await b.saved(b.prompt(1, 8))
    assert not tier.records
    await b.store.stop(5.0)
    second = lower(32, tier, exclusive=True)
    assert (await second.acquire(second.prompt(1, 8))).tiers == {"nvme": 8 * B}


@pytest.mark.parametrize("seed", range(8))
async def test_any_order_of_moves_keeps_every_byte_every_cap_and_every_count(lower, fake_tier, seed):
    """Saves, reads, prefetches, retention, clears, troubles of the tier and restarts; bytes are checked at each read,
    and the whole store is recounted at each step."""
    rng = random.Random(seed)
    tier = fake_tier()
    tier.limit = rng.choice([12, 24, 60]) * 2 * PAGE
    options = {"exclusive": rng.random() < 0.3, "backlog_share": rng.choice([0.25, 1.0])}
    slots = rng.choice([8, 20])
    b = lower(slots, tier, **options)
    late = asyncio.Event()

    def prompt() -> bytes:
        return b.prompt(rng.randrange(3), rng.randint(1, 6)) + b.prompt(rng.randrange(4, 8), rng.randint(0, 4))

    for step in range(150):
        move = rng.randrange(12)
        if move < 3:
            b.save(
                prompt(),
                [RetentionRange(0, 2, Retention(rng.randrange(101), rng.choice([0, 9.0]), rng.random() < 0.2))],
            )
        elif move < 7:
            b.session.prefetch(step, prompt(), skip=rng.randrange(2))
            await b.acquire(prompt(), deadline_s=rng.choice([0, 0.002, 1.0]), skip=rng.randrange(3))
        elif move == 7:
            b.session.cancel_prefetch(rng.randrange(step + 1))
            b.session.retain(prompt(), [RetentionRange(0, 3, Retention(pinned=rng.random() < 0.5))])
        elif move == 8:
            tier.trouble = rng.choice([None, None, Miss(), Failed("corrupt"), Failed("io"), Failed("deadline", late)])
            tier.refusal = rng.choice([None, None, None, Rejected("full"), Failed("io"), Failed("deadline", late)])
        elif move == 9:
            late.set()
            late = asyncio.Event()
            await asyncio.sleep(0.001)
        elif move == 10 and rng.random() < 0.3:
            await b.store.clear()
        elif move == 11 and rng.random() < 0.3:
            late.set()
            late = asyncio.Event()
            tier.trouble = tier.refusal = None
            await b.store.stop(5.0)
            b = lower(slots, tier, **options)
        await asyncio.sleep(0)
        b.store.check()
        assert len(tier.records) * 2 * PAGE <= tier.limit
        assert b.store._demoter.pending_bytes <= slots * PAGE * options["backlog_share"]
    late.set()
