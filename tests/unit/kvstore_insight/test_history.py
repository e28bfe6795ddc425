"""History: fine for a while, coarse for longer, and what happened within an interval is in it once."""

from dataclasses import replace

import pytest
from kvterrace.kvstore.insight.history import COARSE_SAMPLES, FINE_SAMPLES
from kvterrace.kvstore.types import Miss

pytestmark = pytest.mark.unit


def tick(desk, seconds: int = 1) -> None:
    for _ in range(seconds):
        desk.wall += 1.0
        desk.insight.sample()


def test_a_second_has_what_came_in_it(desk, receipt_of):
    desk = desk()
    session = desk.open()
    tick(desk)
    desk.ask(session, desk.prompt(1, 4))
    session.served(replace(receipt_of("a", 64), ttft_s=2.0, miss=Miss("never_seen")))
    session.served(replace(receipt_of("b", 8, dram=56), ttft_s=0.25, saved_s=1.5))
    session.served(replace(receipt_of("c", 8, hbm=56), ttft_s=0.75, saved_s=-0.5))
    tick(desk)
    quiet, busy = desk.insight.history()
    assert (quiet.requests, dict(quiet.tokens), quiet.ttft_hit_s) == (0, {}, None)
    assert busy.requests == 3
    assert dict(busy.tokens) == {"computed": 80, "dram": 56, "hbm": 56}
    assert dict(busy.misses) == {"never_seen": 64}
    assert (busy.ttft_hit_s, busy.ttft_miss_s, busy.saved_s) == (0.5, 2.0, 1.0)
    assert (busy.time_s, busy.seconds) == (1_000_002.0, 1.0)
    dram = busy.tiers["dram"]
    assert (dram.used_bytes, dram.capacity_bytes, dram.came_bytes, dram.left_bytes) == (4 * 4096, 64 * 4096, 16_384, 0)


async def test_what_leaves_is_told_too(desk):
    desk = desk()
    session = desk.open()
    desk.ask(session, desk.prompt(1, 4))
    tick(desk)
    await desk.store.clear()
    tick(desk)
    assert desk.insight.history(1_000_001.0)[0].tiers["dram"].left_bytes == 4 * 4096


def test_it_is_bounded_and_goes_on_in_long_intervals(desk, receipt_of):
    desk = desk()
    session = desk.open()
    session.served(receipt_of("old", 100))
    tick(desk, 2 * FINE_SAMPLES)
    history = desk.insight.history()
    assert len(history) == FINE_SAMPLES + FINE_SAMPLES // 15
    times = [each.time_s for each in history]
    assert times == sorted(times)
    assert history[0].seconds == pytest.approx(15.0)
    assert history[-1].seconds == pytest.approx(1.0)
    assert sum(each.requests for each in history) == 1, "a request is in one interval, however long"
    assert [each.time_s for each in desk.insight.history(desk.wall - 10.0)] == times[-10:]
    assert COARSE_SAMPLES * 15 == 6 * 3600


def test_a_wall_clock_that_is_set_back_does_no_harm(desk):
    desk = desk()
    tick(desk, 20)
    desk.wall -= 3_600.0
    tick(desk, 20)
    assert len(desk.insight.history()) >= 20
