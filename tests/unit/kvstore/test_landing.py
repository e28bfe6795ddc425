"""When the flights of a prompt land: together, but nobody waits for more than is needed."""

import asyncio

import pytest
from kvterrace.kvstore.tiers import Failed

from .lower_bench import PAGE, B, FakeTier

pytestmark = pytest.mark.unit


class Stepwise(FakeTier):
    """Answers each get once told to, by the ordinal of its first block."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[int, asyncio.Event] = {}

    async def get(self, wanted, *, deadline_s):
        await self.gates.setdefault(wanted[0].ordinal, asyncio.Event()).wait()
        return await super().get(wanted, deadline_s=deadline_s)


@pytest.fixture
def flights_of_two(monkeypatch):
    monkeypatch.setattr("kvterrace.kvstore.promoter.FLIGHT_BYTES", 2 * PAGE)


async def _reading(tier: Stepwise, ordinal: int) -> asyncio.Event:
    for _ in range(100):
        if ordinal not in tier.gates:
            await asyncio.sleep(0)
    return tier.gates[ordinal]


async def test_whoever_needs_less_does_not_wait_for_what_others_need_behind_it(lower, flights_of_two):
    b = lower(8, tier=Stepwise())
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    whole = asyncio.create_task(b.acquire(b.prompt(1, 6)))
    (await _reading(b.tier, 0)).set()
    last = await _reading(b.tier, 4)
    await asyncio.sleep(0.01)
    part = await asyncio.wait_for(b.acquire(b.prompt(1, 2)), 1.0)
    assert part.tiers == {"nvme": 2 * B}, "it had come already, and waited for what was behind"
    (await _reading(b.tier, 2)).set()
    last.set()
    assert len((await whole).slots) == 6


async def test_at_the_deadline_what_came_is_given(lower, flights_of_two):
    b = lower(8, tier=Stepwise())
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    waiting = asyncio.create_task(b.acquire(b.prompt(1, 6), deadline_s=0.1))
    for ordinal in (0, 2):
        (await _reading(b.tier, ordinal)).set()
    got = await waiting
    assert (len(got.slots), got.reason) == (4, "deadline")
    (await _reading(b.tier, 4)).set()
    await b.store._promoter.settled()
    assert len((await b.acquire(b.prompt(1, 6), deadline_s=0)).slots) == 6


async def test_a_cancelled_request_leaves_what_came_and_holds_nothing(lower, flights_of_two):
    b = lower(8, tier=Stepwise())
    await b.saved(b.prompt(1, 6))
    await b.push_out(8)
    waiting = asyncio.create_task(b.acquire(b.prompt(1, 6)))
    for ordinal in (0, 2):
        (await _reading(b.tier, ordinal)).set()
    await asyncio.sleep(0.01)
    waiting.cancel()
    (await _reading(b.tier, 4)).set()
    await b.store._promoter.settled()
    b.store.check()
    assert b.store.stats().tiers[0].leased_bytes == 0
    assert len((await b.acquire(b.prompt(1, 6), deadline_s=0)).slots) == 6


async def test_prompts_that_part_within_a_flight_both_come(lower, monkeypatch):
    """The second one's own blocks begin in the middle of the flight that it shares with the first."""
    monkeypatch.setattr("kvterrace.kvstore.promoter.FLIGHT_BYTES", 4 * PAGE)
    b = lower(16, tier=Stepwise())
    one = b.prompt(1, 4)
    other = one[: 2 * B * 4] + b.prompt(2, 4)
    await b.saved(one)
    await b.saved(other)
    await b.push_out(16)
    first = asyncio.create_task(b.acquire(one))
    shared = await _reading(b.tier, 0)
    second = asyncio.create_task(b.acquire(other))
    (await _reading(b.tier, 2)).set()
    await asyncio.sleep(0.01)
    assert not second.done()
    shared.set()
    assert [len((await each).slots) for each in (first, second)] == [4, 6]
    b.store.check()


async def test_who_begins_anew_above_flights_that_still_read_gets_all(lower, flights_of_two):
    """The first flight failed, those behind it read on; a second request asks for all of it."""
    b = lower(16, tier=Stepwise())
    await b.saved(b.prompt(1, 6))
    await b.push_out(16)
    first = asyncio.create_task(b.acquire(b.prompt(1, 6)))
    failing = await _reading(b.tier, 0)
    later = [await _reading(b.tier, ordinal) for ordinal in (2, 4)]
    b.tier.trouble = Failed("io")
    failing.set()
    assert (await first).reason == "io"
    b.tier.trouble = None
    second = asyncio.create_task(b.acquire(b.prompt(1, 6)))
    await asyncio.sleep(0.01)
    for gate in later:
        gate.set()
    assert len((await asyncio.wait_for(second, 2.0)).slots) == 6
    await b.store._promoter.settled()
    assert b.store.stats().tiers[0].leased_bytes == 0
