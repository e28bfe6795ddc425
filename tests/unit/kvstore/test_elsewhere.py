"""A store that asks other nodes: what it takes from them, what it leaves, and what it says about it.

The other node is a store too, asked through the very calls that a node's service uses; only the wire is missing.
"""

import asyncio

import pytest
from kvterrace.kvstore.elsewhere import Holder
from kvterrace.kvstore.tiers import Failed, Hit, Miss, NullTier
from kvterrace.radix import block_keys

from .lower_bench import LAYOUT, PAGE, SPACE, B, FakeTier, LowerBench

pytestmark = pytest.mark.unit


class Neighbour(NullTier):
    """Another store as a tier, and as all that there is elsewhere."""

    def __init__(self, other: LowerBench, known: int) -> None:
        super().__init__("peer")
        self.other, self.known = other, known
        self.available = True
        self.asked = 0
        self.fetched: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.trouble = None

    async def find(self, fingerprint, keys, first, *, deadline_s):
        self.asked += 1
        return [Holder("a", self.known)] if self.known > first else []

    def tier(self, node):
        return self if node == "a" else None

    async def get(self, wanted, *, deadline_s):
        await self.gate.wait()
        if self.trouble is not None:
            return [self.trouble for _ in wanted]
        first = wanted[0].ordinal
        loan = await self.other.store.lend(
            wanted[0].fingerprint, wanted[0].prompt, first, max_blocks=len(wanted), deadline_s=deadline_s
        )
        if loan is None:
            return [Miss() for _ in wanted]
        assert loan.first == first
        assert loan.keys == [each.key for each in wanted[: len(loan.keys)]]
        for each, block in zip(wanted, loan.blocks, strict=False):
            each.into[: LAYOUT.block_bytes] = block
        self.fetched += range(first, first + len(loan.blocks))
        loan.release()
        answers = [Hit(checksum) for checksum in loan.checksums]
        return [*answers, *(Miss() for _ in wanted[len(answers) :])]


@pytest.fixture
async def pair():
    """A store that has computed, and one that asks it; as they are made: slots, known blocks."""
    made: list[LowerBench] = []

    def make(slots: int, known: int, tier: FakeTier | None = None) -> tuple[LowerBench, LowerBench, Neighbour]:
        a, b = LowerBench(64, FakeTier()), LowerBench(slots, tier or FakeTier())
        neighbour = Neighbour(a, known)
        b.store.join(neighbour)
        made.extend((a, b))
        return a, b, neighbour

    yield make
    for each in made:
        each.store.check()
        await each.store.stop(1.0)
        each.store.close()


async def test_what_only_another_node_has_comes_with_its_bytes_and_stays(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 10))
    got = await b.acquire(b.prompt(1, 10))
    assert got.tiers == {"peer": 10 * B}, "the two blocks too that the directory did not know of"
    assert got.reason == ""
    assert (await b.acquire(b.prompt(1, 10))).tiers == {"dram": 10 * B}
    assert neighbour.fetched == list(range(10)), "once"
    a.store.check()


async def test_a_prompt_in_all_three_places_is_put_together(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    await b.saved(b.prompt(1, 4))
    for other in (2, 3, 4, 5):
        await b.saved(b.prompt(other, 4))
    got = await b.acquire(b.prompt(1, 2))
    assert got.tiers == {"nvme": 2 * B}
    got = await b.acquire(b.prompt(1, 8))
    assert got.tiers == {"dram": 2 * B, "nvme": 2 * B, "peer": 4 * B}
    assert neighbour.fetched == [4, 5, 6, 7]


async def test_the_skipped_blocks_are_not_fetched(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    b.save(b.prompt(1, 4))
    got = await b.acquire(b.prompt(1, 8), skip=2)
    assert got.tiers == {"dram": 2 * B, "peer": 4 * B}
    assert neighbour.fetched == [4, 5, 6, 7]


async def test_two_requests_fetch_once(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    first, second = await asyncio.gather(b.acquire(b.prompt(1, 8)), b.acquire(b.prompt(1, 8)))
    assert first.tiers == second.tiers == {"peer": 8 * B}
    assert neighbour.fetched == list(range(8))


async def test_what_another_request_fetched_while_this_one_asked_is_the_nodes(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    ask = neighbour.find

    async def slow(*asked, **options):
        neighbour.find = ask
        await b.acquire(b.prompt(1, 8))
        return []

    neighbour.find = slow
    assert (await b.acquire(b.prompt(1, 8))).tiers == {"peer": 8 * B}


async def test_what_is_not_there_any_more_is_a_plain_miss(pair):
    _, b, neighbour = pair(16, known=8)
    got = await b.acquire(b.prompt(1, 8))
    assert (len(got.slots), got.reason) == (0, "never_seen")
    assert neighbour.asked == 1
    assert not b.store.stats().counters.failed_loads


@pytest.mark.parametrize("reason", ["io", "deadline", "corrupt", "breaker"])
async def test_a_failing_node_is_a_miss_that_says_why(pair, reason):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    neighbour.trouble = Failed(reason)
    got = await b.acquire(b.prompt(1, 8))
    assert (len(got.slots), got.reason) == (0, reason)
    assert b.store.stats().counters.failed_loads[reason] == 8


async def test_a_node_that_hangs_costs_the_deadline_and_no_more(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    neighbour.gate.clear()
    began = asyncio.get_running_loop().time()
    got = await b.acquire(b.prompt(1, 8), deadline_s=0.05)
    assert asyncio.get_running_loop().time() - began < 1
    assert (len(got.slots), got.reason) == (0, "deadline")
    neighbour.gate.set()


async def test_nobody_is_asked_without_time_or_when_nobody_answers_at_present(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    assert len((await b.acquire(b.prompt(1, 8), deadline_s=0)).slots) == 0
    neighbour.available = False
    assert len((await b.acquire(b.prompt(1, 8))).slots) == 0
    assert neighbour.asked == 0


async def test_what_computes_faster_than_asking_takes_is_not_asked_for(pair):
    a, b, neighbour = pair(16, known=8)
    a.save(a.prompt(1, 8))
    b.session.observe([(0, 1000, 0.0001)] * 8)
    assert len((await b.acquire(b.prompt(1, 8))).slots) == 0
    assert neighbour.asked == 0


async def test_what_is_lent_is_not_evicted_until_it_is_given_back(pair):
    a, _, _ = pair(16, known=0)
    a.save(a.prompt(1, 60))
    loan = await a.store.lend(SPACE.fingerprint(), a.prompt(1, 60), 10, max_blocks=20, deadline_s=0)
    assert loan is not None
    assert len(loan.blocks) == 20
    a.save(a.prompt(2, 60))
    assert await a.store.flush(5.0) == 0
    assert [int(block[0]) for block in loan.blocks] == [a.content(a.prompt(1, 60), n) for n in range(10, 30)]
    assert a.store.stats().tiers[0].leased_bytes == 30 * PAGE
    loan.release()
    loan.release()
    a.store.check()
    assert a.store.stats().tiers[0].leased_bytes == 0


async def test_a_loan_is_brought_up_from_below(pair):
    _, b, _ = pair(8, known=0)
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    loan = await b.store.lend(SPACE.fingerprint(), b.prompt(1, 6), 2, max_blocks=9, deadline_s=1.0)
    assert loan is not None
    assert [int(block[0]) for block in loan.blocks] == [b.content(b.prompt(1, 6), n) for n in range(2, 6)]
    loan.release()


async def test_watchers_hear_of_all_that_comes_and_goes_in_every_tier(pair):
    class Notes:
        def __init__(self):
            self.here = {}

        def stored(self, tier, fingerprint, first, keys, parent, tokens):
            assert len(tokens) == len(keys) * B * 4
            for ordinal, key in enumerate(keys, first):
                self.here[tier, key] = ordinal

        def removed(self, tier, fingerprint, keys):
            for key in keys:
                del self.here[tier, key]

        def cleared(self, tier, fingerprint):
            self.here = {at: ordinal for at, ordinal in self.here.items() if at[0] != tier}

    _, b, _ = pair(8, known=0, tier=FakeTier(blocks=12))
    early, late = Notes(), Notes()
    b.store.watch(early)
    for name in range(6):
        await b.saved(b.prompt(name, 4))
    b.store.watch(late)
    assert early.here == late.here, "what was there is told of, too"
    usage = b.store.stats().tiers
    assert sum(tier == "dram" for tier, _ in early.here) == usage[0].blocks == 8
    assert sum(tier == "nvme" for tier, _ in early.here) == usage[1].blocks == 12
    await b.acquire(b.prompt(5, 4))
    assert early.here == late.here
    await b.store.clear()
    assert early.here == late.here == {}


async def test_what_is_there_is_told_of_once_however_many_prompts_share_it(pair):
    _, b, _ = pair(32, known=0)
    for name in range(4):
        await b.saved(b.prompt(1, 4) + b.prompt(10 + name, 2))
    told: list[tuple[str, int, bytes, bytes, bytes]] = []

    class Notes:
        def stored(self, tier, fingerprint, first, keys, parent, tokens):
            for n, key in enumerate(keys):
                above = keys[n - 1] if n else parent
                told.append((tier, first + n, above, key, tokens[n * B * 4 : (n + 1) * B * 4]))

    b.store.watch(Notes())
    assert len(told) == len(set(told)) == 2 * (4 + 4 * 2)
    for _, ordinal, above, key, tokens in told:
        assert ordinal or above == SPACE.fingerprint()
        assert block_keys(above, tokens, B) == [key]
