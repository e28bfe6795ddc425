"""Prefetches that other nodes answer, behind what requests wait for."""

import asyncio

import pytest

from .lower_bench import B, FakeTier, LowerBench
from .test_elsewhere import Neighbour

pytestmark = pytest.mark.unit


@pytest.fixture
async def pair():
    """A store that asks, and the one it asks, which has a prompt of 8 blocks."""
    a, b = LowerBench(64, FakeTier()), LowerBench(16, FakeTier())
    a.save(a.prompt(1, 8))
    neighbour = Neighbour(a, 8)
    b.store.join(neighbour)
    yield b, neighbour
    for each in (a, b):
        each.store.check()
        await each.store.stop(1.0)
        each.store.close()


async def arrived(b: LowerBench, blocks: int) -> None:
    for _ in range(200):
        if sum(tier.blocks for tier in b.store.stats().tiers[:1]) == blocks:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


async def test_what_another_node_has_is_here_when_the_request_comes(pair):
    b, neighbour = pair
    b.session.prefetch(1, b.prompt(1, 8), skip=0)
    await arrived(b, 8)
    b.session.cancel_prefetch(1)
    got = await b.acquire(b.prompt(1, 8))
    assert got.tiers == {"dram": 8 * B}
    assert neighbour.fetched == list(range(8))
    assert b.store.stats().counters.prefetched_blocks["used"] == 8


async def test_a_request_joins_the_prefetch_of_its_blocks(pair):
    b, neighbour = pair
    neighbour.gate.clear()
    b.session.prefetch(1, b.prompt(1, 8), skip=0)
    asking = asyncio.ensure_future(b.acquire(b.prompt(1, 8)))
    await asyncio.sleep(0.05)
    neighbour.gate.set()
    assert (await asking).tiers == {"peer": 8 * B}
    assert neighbour.fetched == list(range(8)), "once"


@pytest.mark.parametrize("when", ["asking", "after"])
async def test_a_cancelled_one_costs_nothing_more(pair, when):
    b, neighbour = pair
    hold = asyncio.Event()
    found = neighbour.find

    async def find(*args, **options):
        if when == "asking":
            await hold.wait()
        return await found(*args, **options)

    neighbour.find = find
    neighbour.gate.clear()
    b.session.prefetch(1, b.prompt(1, 8), skip=0)
    b.session.prefetch(1, b.prompt(1, 8), skip=0)  # the same again is none
    await asyncio.sleep(0.02)
    b.session.cancel_prefetch(1)
    hold.set()
    neighbour.gate.set()
    await asyncio.sleep(0.05)
    assert neighbour.asked <= 1
    assert neighbour.fetched == ([] if when == "asking" else list(range(8)))
    b.store.check()


async def test_a_session_that_ends_takes_its_prefetches_with_it(pair):
    b, neighbour = pair
    hold = asyncio.Event()

    async def find(*_, **__):
        await hold.wait()
        return []

    neighbour.find = find
    for ticket in range(300):
        b.session.prefetch(ticket, b.prompt(ticket + 2, 4), skip=0)
    await asyncio.sleep(0)
    assert len([task for task in asyncio.all_tasks() if "_ask" in repr(task)]) <= 257 + 44
    b.session.close()
    await asyncio.sleep(0.02)
    assert not [task for task in asyncio.all_tasks() if "_ask" in repr(task)]
