"""Insight costs those who are served next to nothing, and never grows."""

import asyncio

import pytest
from kvterrace.kvstore.insight import background
from kvterrace.kvstore.insight.background import MOST_WAITING, MOST_WAITING_BYTES, SHARE, SLICE_S, Background
from kvterrace.kvstore.insight.facts import Asked, SpaceFacts

pytestmark = pytest.mark.unit

FACTS = SpaceFacts(b"f" * 32, "tiny", "", 16, 4096, "sha256")
STEP_S = 0.0004


def asked(size: int = 64) -> Asked:
    return Asked(FACTS, bytes(size), 0, "", 0.0)


class Work:
    """Each prompt takes `steps` steps of STEP_S."""

    def __init__(self, steps: int = 3) -> None:
        self.cpu_s, self.done, self.steps = 0.0, 0, steps
        self.background = Background(self.look, lambda: self.cpu_s)

    def look(self, _: Asked):
        for _ in range(self.steps):
            self.cpu_s += STEP_S
            yield
        self.done += 1


def test_what_does_not_fit_is_left_out_and_counted():
    work = Work()
    for _ in range(MOST_WAITING + 7):
        work.background.put(asked())
    assert work.background.skipped == 7
    work.background.catch_up()
    assert (work.done, work.background.looked) == (MOST_WAITING, MOST_WAITING)


def test_long_prompts_wait_within_a_bound_of_bytes():
    work = Work()
    for _ in range(5):
        work.background.put(asked(MOST_WAITING_BYTES // 4))
    assert work.background.skipped == 1
    work.background.catch_up()
    work.background.put(asked(MOST_WAITING_BYTES // 4))
    assert work.background.skipped == 1


async def test_it_takes_its_share_of_the_loop_and_no_more(monkeypatch):
    work, slept = Work(), []
    begin, sleep = asyncio.get_running_loop().create_task, asyncio.sleep

    async def count(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(background.asyncio, "sleep", count)
    for _ in range(200):
        work.background.put(asked())
    task = begin(work.background.run())
    while work.done < 200:
        await sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert work.cpu_s / (work.cpu_s + sum(slept)) <= SHARE + 1e-9
    assert max(slept) <= (SLICE_S + 2 * STEP_S) * (1 / SHARE - 1), "a slice was too long"
    assert work.background.worked_s == pytest.approx(work.cpu_s)


async def test_it_wakes_for_what_comes_later():
    work = Work(steps=1)
    task = asyncio.create_task(work.background.run())
    await asyncio.sleep(0.01)
    work.background.put(asked())
    async with asyncio.timeout(2):
        while not work.done:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
