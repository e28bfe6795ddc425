"""Budget: never more than its limit, first come first served, and nothing is lost to those who give up."""

import asyncio
import random

import pytest
from kvterrace.kvstore.peer.budget import Budget

pytestmark = pytest.mark.unit


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_what_fits_passes_at_once_and_what_does_not_waits_its_turn():
    budget, order = Budget(10), []

    async def use(name, size):
        assert await budget.take(size, soon(5))
        order.append(name)

    assert await budget.take(6, soon(1))
    tasks = [asyncio.create_task(use(name, size)) for name, size in (("large", 8), ("small", 1), ("mid", 3))]
    await asyncio.sleep(0.01)
    assert order == []  # the small one does not overtake
    budget.give(6)
    await asyncio.sleep(0.01)
    assert order == ["large", "small"]
    budget.give(8)
    await asyncio.gather(*tasks)
    assert order == ["large", "small", "mid"]
    assert budget.taken_bytes == 4


async def test_what_is_larger_than_the_limit_goes_alone():
    budget = Budget(10)
    assert await budget.take(100, soon(1))
    assert not await budget.take(1, soon(0.01))
    budget.give(100)
    assert await budget.take(1, soon(1))


async def test_who_gives_up_holds_up_nobody():
    budget = Budget(10)
    assert await budget.take(5, soon(1))
    late = asyncio.create_task(budget.take(9, soon(0.02)))
    cancelled = asyncio.create_task(budget.take(9, soon(5)))
    behind = asyncio.create_task(budget.take(5, soon(5)))
    await asyncio.sleep(0.01)
    cancelled.cancel()
    assert await asyncio.wait_for(behind, 1)
    assert not await late
    assert budget.taken_bytes == 10


async def test_a_turn_that_comes_as_its_owner_is_cancelled_is_given_back():
    budget = Budget(10)
    assert await budget.take(10, soon(1))
    waiting = asyncio.create_task(budget.take(10, soon(5)))
    await asyncio.sleep(0.01)
    budget.give(10)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.taken_bytes == 0


@pytest.mark.parametrize("seed", range(5))
async def test_random_use_stays_within_the_limit_and_ends_at_nothing(seed):
    rng, budget = random.Random(seed), Budget(20)

    async def use():
        await asyncio.sleep(rng.random() * 0.05)
        size = rng.randint(1, 15)
        if await budget.take(size, soon(rng.random() * 0.05)):
            try:
                assert budget.taken_bytes <= 20
                await asyncio.sleep(rng.random() * 0.01)
            finally:
                budget.give(size)

    tasks = [asyncio.create_task(use()) for _ in range(60)]
    for task in rng.sample(tasks, 15):
        asyncio.get_running_loop().call_later(rng.random() * 0.08, task.cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(each is None or isinstance(each, asyncio.CancelledError) for each in results), results
    assert budget.taken_bytes == 0
