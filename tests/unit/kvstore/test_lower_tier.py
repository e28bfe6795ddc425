"""A store with a tier below DRAM: what is written down, what comes back up, and what a misbehaving tier does."""

import asyncio

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.placement.admission import SecondHit
from kvterrace.kvstore.store import Below, Store
from kvterrace.kvstore.tiers import Failed, Miss, Rejected, Stored
from kvterrace.kvstore.tiers.dram import DramTier
from kvterrace.kvstore.tiers.nvme.types import Inventory
from kvterrace.proto import BlockLayout, Namespace, Retention, RetentionRange
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

B = 4
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=B, head_dim=64, dtype="float16")
SPACE = Namespace(b"weights-0", LAYOUT)
PAGE = 4096


class FakeTier(DramTier):
    """A DramTier that outlives its store, waits at `gate`, and answers what it is told to."""

    def __init__(self, blocks: int = 1000) -> None:
        super().__init__(blocks * (2 * PAGE), name="nvme")
        self.gate = asyncio.Event()
        self.gate.set()
        self.trouble = None  # an answer instead of every get
        self.refusal = None  # and of every put
        self.asked: list[bytes] = []
        self.records = {}
        self.synced = 0
        self.limit = blocks * 2 * PAGE

    async def get(self, wanted, *, deadline_s):
        self.asked += [each.key for each in wanted]
        await self.gate.wait()
        if self.trouble is not None:
            return [self.trouble for _ in wanted]
        return await super().get(wanted, deadline_s=deadline_s)

    async def put(self, records, *, deadline_s):
        await self.gate.wait()
        await self.drop([record.key for record in records if record.replace])
        if self.refusal is not None:
            return [self.refusal for _ in records]
        answers = await super().put(records, deadline_s=deadline_s)
        self.records.update({r.key: r for r, a in zip(records, answers, strict=True) if isinstance(a, Stored)})
        return answers

    async def drop(self, keys):
        for key in keys:
            self.records.pop(key, None)
        return await super().drop(keys)

    async def clear(self, fingerprint):
        keys = [key for key, r in self.records.items() if fingerprint in (None, r.fingerprint)]
        await self.drop(keys)
        return len(keys)

    async def flush(self, *, deadline_s):
        self.synced += 1
        return True

    def devices(self):
        return ()

    def usage(self):
        usage = super().usage()
        live = len(self.records) * 2 * PAGE
        return type(usage)(usage.capacity_bytes, usage.used_bytes, usage.blocks, live, self.limit)

    async def close(self):
        """It outlives its store."""

    def inventory(self):
        rows = list(self.records.values())
        pack = lambda keys: np.frombuffer(b"".join(key.ljust(32, b"\0") for key in keys), np.uint8).reshape(-1, 32)  # noqa: E731
        ttl = np.array([r.retention.ttl_s for r in rows])
        return [
            Inventory(
                SPACE.fingerprint(),
                "sha256",
                B,
                LAYOUT.block_bytes,
                pack([r.key for r in rows]),
                pack([r.parent for r in rows]),
                np.frombuffer(b"".join(r.tokens for r in rows), np.int32).reshape(-1, B),
                np.array([r.retention.priority for r in rows], np.uint8),
                ttl,
                np.array([r.retention.pinned for r in rows], np.bool_),
                np.where(ttl > 0, 1e12, np.inf),
                np.arange(len(rows), dtype=np.uint64),
            )
        ]


class Bench:
    """A store of `slots` slots over a tier; one session on it."""

    def __init__(self, slots: int, tier: FakeTier, **below) -> None:
        self.tier = tier
        inventory = tier.inventory() if tier.records else ()
        options = {"backlog_share": 1.0, "in_flight_share": 1.0} | below
        self.store = Store(Arena.anonymous(slots * PAGE), below=Below(tier, inventory, **options))
        self.session = self.store.open_session(SPACE, client="test")

    @staticmethod
    def prompt(name: int, blocks: int) -> bytes:
        return pack_tokens(np.arange(blocks * B) + name * 100_000)

    @staticmethod
    def content(tokens: bytes, ordinal: int) -> int:
        return xxhash.xxh3_64_intdigest(tokens[: (ordinal + 1) * B * 4]) % 251

    def save(self, tokens: bytes, retention=()) -> int:
        count = len(tokens) // 4 // B
        given = self.session.reserve(tokens, start=0, count=count, retention=retention)
        sums = []
        for ordinal, ref in zip(given.blocks, given.slots, strict=True):
            block = self.session.arena.block(ref.slot)[: LAYOUT.block_bytes]
            block[:] = self.content(tokens, ordinal)
            sums.append(xxhash.xxh3_64_intdigest(block))
        assert not given.lease or self.session.commit(given.lease, sums)
        return len(given.blocks)

    async def saved(self, tokens: bytes, **options) -> int:
        """Save and wait until it is written down."""
        count = self.save(tokens, **options)
        assert await self.store.flush(5.0) == 0
        return count

    async def acquire(self, tokens: bytes, deadline_s: float = 5.0, skip: int = 0):
        """Acquire, check the bytes, release."""
        got = await self.session.acquire(tokens, skip=skip, deadline_s=deadline_s)
        for ordinal, ref in enumerate(got.slots, got.first):
            block = self.session.arena.block(ref.slot)[: LAYOUT.block_bytes]
            assert (block == self.content(tokens, ordinal)).all(), "a wrong byte"
            assert xxhash.xxh3_64_intdigest(block) == ref.checksum
        self.session.release(got.lease)
        self.store.check()
        return got

    @property
    def counters(self):
        return self.store.stats().counters

    async def push_out(self, blocks: int) -> None:
        """Fill DRAM with prompts that nobody asks for again."""
        for name in range(blocks):
            await self.saved(self.prompt(9000 + name, 1))


@pytest.fixture
async def bench():
    made = []

    def make(slots: int, tier=None, **below) -> Bench:
        made.append(Bench(slots, tier or FakeTier(), **below))
        return made[-1]

    yield make
    for each in made:
        each.tier.gate.set()
        await each.store._promoter.settled()
        each.store.check()
        await each.store.stop(5.0)
        await each.store._promoter.settled()
        each.store.check()
        each.store.close()


async def test_what_left_dram_comes_back_from_below_with_its_bytes(bench):
    b = bench(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    got = await b.acquire(b.prompt(1, 7), skip=1)
    assert (len(got.slots), got.tiers, got.reason) == (5, {"nvme": 5 * B}, "never_seen")
    assert b.counters.hit_tokens["nvme"] == 5 * B
    again = await b.acquire(b.prompt(1, 7))
    assert again.tiers == {"dram": 6 * B}, "it was brought up, and stays"


async def test_without_time_to_wait_there_is_only_dram(bench):
    b = bench(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    got = await b.acquire(b.prompt(1, 6), deadline_s=0)
    assert (len(got.slots), got.reason, b.tier.asked) == (0, "deadline", [])


async def test_look_up_names_the_tiers_and_moves_nothing(bench):
    b = bench(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(5)
    found = b.session.lookup(b.prompt(1, 9))
    assert found.tiers == {"dram": 3 * B, "nvme": 3 * B}
    assert (found.reason, b.tier.asked) == ("never_seen", [])


async def test_a_block_is_read_once_whoever_waits_for_it(bench):
    b = bench(16)
    await b.saved(b.prompt(1, 6))
    await b.push_out(16)
    b.tier.gate.clear()
    asks = [asyncio.create_task(b.acquire(b.prompt(1, 4 + n))) for n in range(3)]
    await asyncio.sleep(0.01)
    b.tier.gate.set()
    got = await asyncio.gather(*asks)
    assert [len(each.slots) for each in got] == [4, 5, 6]
    assert len(b.tier.asked) == len(set(b.tier.asked)) == 6


async def test_a_deadline_ends_the_wait_and_the_blocks_are_there_for_the_next(bench):
    b = bench(8)
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


async def test_slots_that_a_hung_device_may_still_write_to_are_nobody_elses(bench):
    b = bench(8)
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
async def test_what_the_tier_cannot_give_is_not_asked_for_twice(bench, answer, reason):
    b = bench(8)
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
async def test_a_failing_device_is_a_miss_and_is_asked_again_later(bench, reason):
    b = bench(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.tier.trouble = Failed(reason)
    assert (await b.acquire(b.prompt(1, 6))).reason == reason
    b.tier.trouble = None
    assert (await b.acquire(b.prompt(1, 6))).tiers == {"nvme": 6 * B}


async def test_loading_what_is_slower_than_computing_is_left(bench):
    b = bench(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.session.observe([(0, 16, 1e-9), (0, 32, 2e-9), (0, 64, 4e-9), (16, 32, 2e-9), (0, 128, 8e-9)])
    for _ in range(4):
        b.store._io.observe("nvme", 4096, 1.0, "read")
    got = await b.acquire(b.prompt(1, 6))
    assert (len(got.slots), got.reason) == (0, "slower_to_load")


async def test_a_prompt_larger_than_dram_comes_up_as_far_as_there_is_room(bench):
    b = bench(8)
    for blocks in (6, 12, 18):
        await b.saved(b.prompt(1, blocks))
    got = await b.acquire(b.prompt(1, 18))
    assert 0 < len(got.slots) <= 8


async def test_one_off_prompts_are_not_written_when_only_second_hits_are(bench):
    b = bench(16, admission=SecondHit())
    await b.saved(b.prompt(1, 4))
    await b.saved(b.prompt(2, 4))
    assert not b.tier.records
    await b.acquire(b.prompt(2, 4))
    await b.store.flush(5.0)
    assert len(b.tier.records) == 4
    assert b.counters.dropped_demotions["not_admitted"] == 8


async def test_a_refused_write_is_counted_and_offered_again(bench):
    b = bench(16)
    b.tier.refusal = Rejected("budget")
    await b.saved(b.prompt(1, 4))
    assert b.counters.dropped_demotions["budget"] == 4
    b.tier.refusal = None
    await b.acquire(b.prompt(1, 4))
    await b.store.flush(5.0)
    assert len(b.tier.records) == 4


async def test_what_waits_to_be_written_is_bounded(bench):
    b = bench(32, backlog_share=0.25)
    b.tier.gate.clear()
    for name in range(6):
        b.save(b.prompt(name, 4))
        await asyncio.sleep(0)
    assert b.store.stats().tiers[1].reserved_bytes <= 8 * PAGE
    assert b.counters.dropped_demotions["backlog"] >= 4


async def test_the_tier_is_emptied_from_the_tips_and_keeps_within_its_limit(bench):
    tier = FakeTier()
    tier.limit = 8 * 2 * PAGE
    b = bench(32, tier)
    await b.saved(b.prompt(1, 6))
    await b.saved(b.prompt(2, 6))
    assert len(tier.records) == 8
    found = b.store._depot.of(SPACE.fingerprint())
    assert len(found.index.match(b.prompt(2, 6))) == 6, "the newer prompt is whole"
    assert len(found.index.match(b.prompt(1, 6))) == 2, "the older one has lost its tail, not its head"


async def test_a_restarted_store_serves_what_the_tier_has(bench):
    tier = FakeTier()
    first = bench(16, tier)
    await first.saved(first.prompt(1, 6))
    await first.saved(first.prompt(1, 3) + first.prompt(2, 3))
    second = bench(16, tier)
    assert (await second.acquire(second.prompt(1, 8))).tiers == {"nvme": 6 * B}
    assert (await second.acquire(second.prompt(1, 3) + second.prompt(2, 3))).tiers == {"dram": 3 * B, "nvme": 3 * B}


async def test_retention_goes_down_comes_back_and_outlives_the_store(bench):
    tier = FakeTier()
    b = bench(8, tier)
    keep = Retention(priority=90, ttl_s=3600.0, pinned=True)
    await b.saved(b.prompt(1, 4), retention=[RetentionRange(0, 2, keep)])
    assert [r.retention for r in tier.records.values()] == [keep, keep, Retention(), Retention()]
    second = bench(8, tier)
    await second.acquire(second.prompt(1, 4))
    index = second.session._space.index
    said = index.retention(index.match(second.prompt(1, 4)).blocks)
    assert said.priority.tolist() == [90, 90, 50, 50]
    assert said.pinned.tolist() == [True, True, False, False]


async def test_clear_reaches_every_tier(bench):
    b = bench(16)
    await b.saved(b.prompt(1, 6))
    assert await b.store.clear() == 6
    assert not b.tier.records
    assert (await b.acquire(b.prompt(1, 6))).reason == "cleared"


async def test_what_was_being_written_when_the_store_was_cleared_does_not_come_back(bench):
    b = bench(16)
    b.tier.gate.clear()
    b.save(b.prompt(1, 6))
    await asyncio.sleep(0.01)
    await b.store.clear()
    b.tier.gate.set()
    await b.store.flush(5.0)
    assert not b.tier.records
    assert not len(b.store._depot.of(SPACE.fingerprint()) or ())


async def test_a_prefetched_prefix_is_in_dram_when_its_request_comes(bench):
    b = bench(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.session.prefetch(7, b.prompt(1, 6), skip=0)
    await b.store._promoter.settled()
    b.session.cancel_prefetch(7)
    assert (await b.acquire(b.prompt(1, 6), deadline_s=0)).tiers == {"dram": 6 * B}
    assert b.counters.prefetched_blocks["used"] == 6


async def test_a_cancelled_prefetch_that_has_not_begun_reads_nothing(bench):
    b = bench(8)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    b.session.prefetch(7, b.prompt(1, 6), skip=0)
    b.session.prefetch(8, b.prompt(1, 6), skip=0)
    asked = len(b.tier.asked)
    b.session.close()
    await b.store._promoter.settled()
    assert len(b.tier.asked) in (asked, 6)
    b.store.check()


async def test_exclusive_writes_what_is_about_to_leave_and_drops_what_came_up(bench):
    b = bench(32, exclusive=True)
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
