"""Latencies by whether the cache helped, and requests and tokens that met the objective."""

import pytest
from kvterrace.engine.receipt import is_hit

pytestmark = pytest.mark.unit


def test_first_tokens_of_hits_and_misses_are_counted_apart(rig, prompt):
    engine = rig()
    engine.model.token_s = 0.01
    tokens = prompt(1, 33)
    engine.one(tokens, n=2)
    engine.one(tokens)
    engine.one(tokens[:12] + prompt(2, 21))
    stats = engine.core.stats
    assert (stats.ttft_hit.count, stats.ttft_miss.count) == (1, 2)
    assert stats.ttft_hit.sum_s == pytest.approx(0.01)
    assert stats.ttft_miss.sum_s == pytest.approx(0.33 + 0.21)


@pytest.mark.parametrize(("cached", "hit"), [(0, False), (4, False), (5, True), (9, True)])
def test_half_of_the_prompt_makes_a_hit(cached, hit):
    assert is_hit(cached, 10) is hit


def test_time_per_token_is_the_mean_between_a_samples_tokens(rig, prompt):
    engine = rig()
    engine.model.token_s = 0.01
    engine.one(prompt(1, 9), max_tokens=5)
    engine.one(prompt(2, 9), max_tokens=1)  # one token: nothing between
    assert engine.core.stats.tpot.count == 1
    assert engine.core.stats.tpot.sum_s == pytest.approx(0.01)


def judged(engine):
    stats = engine.core.stats
    return stats.slo_requests, stats.slo_tokens


def test_without_an_objective_nothing_is_judged(rig, prompt):
    engine = rig()
    engine.one(prompt(1, 9))
    assert judged(engine) == ({}, {})


def test_the_first_token_is_to_come_in_time(rig, prompt):
    engine = rig(slo_ttft_s=0.2)
    engine.model.token_s = 0.01
    engine.one(prompt(1, 19), max_tokens=3)
    engine.one(prompt(2, 21), max_tokens=4)
    assert judged(engine) == ({"met": 1, "missed": 1}, {"met": 3, "missed": 4})


def test_the_others_are_to_follow_in_time_for_every_sample(rig, prompt):
    engine = rig(slo_itl_s=0.015)
    engine.model.token_s = 0.01
    engine.one(prompt(1, 9), max_tokens=3)
    engine.one(prompt(2, 9), max_tokens=3, n=2)  # two tokens a step
    assert judged(engine) == ({"met": 1, "missed": 1}, {"met": 3, "missed": 6})


def test_what_failed_or_waited_too_long_has_not_met_it_and_who_left_is_not_judged(rig, prompt):
    engine = rig(slo_ttft_s=10.0, max_running=1, max_queue_wait_s=5.0)
    engine.model.fail_next = True
    engine.one(prompt(1, 9))
    engine.submit(prompt(2, 9), max_tokens=30)
    engine.submit(prompt(3, 9))
    engine.step(2)
    engine.clock.now += 6.0
    engine.run()
    engine.submit(prompt(4, 9), name="left", n=2)
    engine.step(2)
    engine.core.cancel("left")
    engine.run()
    assert judged(engine)[0] == {"met": 1, "missed": 2}


def test_tokens_that_wait_and_run_are_gauges(rig, prompt):
    engine = rig(pages=16)
    engine.submit(prompt(1, 9), max_tokens=9)
    engine.step(3)
    stats = engine.core.snapshot()
    assert (stats.admitted_tokens, stats.capacity_tokens) == (9 + 3, 64)
    engine.run()
    assert engine.core.snapshot().admitted_tokens == 0
