"""Requests that wait for others who compute what they need: how long, for how much of it, and never for nothing."""

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest
from kvterrace.kvstore import computing
from kvterrace.kvstore.computing import CHEAPER, GONE, LOADED, SLOW
from kvterrace.kvstore.metrics import make_registry
from kvterrace.kvstore.types import Wait
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

B = 4  # tokens of a block
TOKEN_S = 0.01  # what computing one takes, as the engines of these tests say
CALL = 4  # blocks of a call of the model: 0.16 s
CALL_S, GRACE_S = CALL * B * TOKEN_S, computing.GRACE_S


class Desk:
    """Sessions on one namespace, a clock that stands, and the patience of requests. Blocks are saved by hand."""

    def __init__(self, bench, run, pages: int = 256):
        self.b, self.run = bench(pages), run
        self.sessions = []
        one = self.session()
        for _ in range(8):
            one.observe([(0, CALL * B, CALL_S)])
        self.marks = one._space.computing

    def session(self):
        self.sessions.append(self.b.open())
        return self.sessions[-1]

    def begin(self, session, tokens: bytes, wait: Wait | None = None):
        """Ask as a request does first. Nothing here takes time."""
        return self.run(self._ask(session, tokens, wait or Wait(session.id * 1000 + 1)))

    async def _ask(self, session, tokens, wait):
        return await session.acquire(tokens, skip=0, deadline_s=1e-3, wait=wait)

    def again(self, session, tokens: bytes, wait: Wait, waited_s: float):
        """Ask again after waiting so long on the clock."""
        self.b.now += waited_s
        return self.begin(session, tokens, replace(wait, waited_s=wait.waited_s + waited_s))

    def compute(self, session, tokens: bytes, first: int, end: int, took_s: float = 0.0) -> None:
        self.b.now += took_s
        part = tokens[: end * B * 4]
        reserved = session.reserve(part, start=first, count=end - first)
        if reserved.lease:
            assert session.commit(reserved.lease, self.b.fill(session, reserved))
        self.b.store.check()

    @property
    def waits(self):
        return dict(self.b.counters.inflight_waits)


@pytest.fixture
def run():
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def desk(bench, run):
    return Desk(bench, run)


def parted(b, blocks: int, at_token: int) -> bytes:
    """Prompt 1 up to that token, then another."""
    tokens = np.arange(blocks * B) + 100_000
    tokens[at_token:] += 7_000_000
    return pack_tokens(tokens)


def test_the_second_waits_while_the_first_computes_and_gets_its_blocks(desk):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 12)
    assert desk.begin(one, prompt).reason == "never_seen"
    got = desk.begin(two, prompt)
    assert (got.lease, got.reason, got.wait.had, got.wait.until) == (0, "computing", 0, 12)
    assert got.wait.expected_s == pytest.approx(12 * B * TOKEN_S)
    for first in (0, 4, 8):
        desk.compute(one, prompt, first, first + 4, CALL_S)
        got = desk.again(two, prompt, got.wait, CALL_S)
    assert (len(got.slots), got.reason, got.wait) == (12, "", None)
    assert got.tiers == {"dram": 12 * B}
    assert desk.waits == {LOADED: 1}
    assert desk.b.counters.inflight_tokens == 12 * B
    assert desk.b.counters.inflight_wait_s == pytest.approx(3 * CALL_S, abs=0.1)
    assert desk.b.counters.acquires == 2, "asking again is no use of anything"
    assert len(desk.marks) == 0


def test_who_does_not_say_that_it_computes_neither_waits_nor_is_waited_for(desk):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 12)
    assert desk.run(one.acquire(prompt, skip=0, deadline_s=1, wait=None)).reason == "never_seen"
    assert desk.begin(two, prompt).reason == "never_seen"
    assert desk.run(one.acquire(prompt, skip=0, deadline_s=1, wait=None)).reason == "never_seen"


def test_a_short_prompt_and_one_of_unknown_cost_wait_for_nobody(desk, bench):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 1)
    assert {desk.begin(each, prompt).reason for each in (one, two)} == {"never_seen"}
    other = bench(64)
    sessions = other.open(), other.open()
    for session in sessions:
        asked = session.acquire(other.prompt(1, 12), skip=0, deadline_s=1, wait=Wait(1))
        assert asyncio.run(asked).reason == "never_seen"
    assert other.counters.inflight_marks == 0


@pytest.mark.parametrize(("at_token", "common"), [(8 * B - 1, 7), (8 * B, 8), (8 * B + 1, 8)])
def test_prompts_that_part_wait_for_what_they_share(desk, at_token, common):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 16)
    other = parted(desk.b, 16, at_token)
    desk.begin(one, prompt)
    got = desk.begin(two, other)
    assert got.wait.until == common
    desk.compute(one, prompt, 0, 4, CALL_S)
    desk.compute(one, prompt, 4, 8, CALL_S)
    got = desk.again(two, other, got.wait, 2 * CALL_S)
    assert (len(got.slots), got.wait) == (common, None)
    assert len(desk.marks) == 2, "each computes its own from there on"
    third = desk.session()
    assert desk.begin(third, other).wait.until == 16
    assert desk.begin(third, prompt).wait.until == 16


def test_a_prompt_that_parts_in_the_first_missing_block_waits_for_nobody(desk):
    one, two = desk.session(), desk.session()
    desk.begin(one, desk.b.prompt(1, 12))
    assert desk.begin(two, parted(desk.b, 12, B - 1)).wait is None


@pytest.mark.parametrize("how", ["close", "abandon", "abort", "refused"])
def test_when_the_first_will_not_the_second_does_and_the_third_waits_for_that(desk, how):
    one, two, three, prompt = desk.session(), desk.session(), desk.session(), desk.b.prompt(1, 12)
    desk.begin(one, prompt, Wait(77))
    second, third = desk.begin(two, prompt), desk.begin(three, prompt)
    desk.compute(one, prompt, 0, 4, CALL_S)
    if how == "close":
        one.close()
    elif how == "abandon":
        one.abandon(76)
        assert len(desk.marks) == 1, "another ticket"
        one.abandon(77)
    elif how == "abort":
        one.abort(one.reserve(prompt[: 8 * B * 4], start=4, count=4).lease)
    else:
        one._shared.backlog.session_limit_slots = 0
        assert one.reserve(prompt, start=4, count=4).reason == "backlog"
        one._shared.backlog.session_limit_slots = 2048
    got = desk.again(two, prompt, second.wait, CALL_S)
    assert (len(got.slots), got.wait) == (4, None)
    assert desk.waits == {GONE: 1}
    got = desk.again(three, prompt, third.wait, 0.0)
    assert got.reason == "computing"
    desk.compute(two, prompt, 4, 12, 2 * CALL_S)
    assert len(desk.again(three, prompt, got.wait, 2 * CALL_S).slots) == 12


def test_an_owner_that_does_nothing_costs_one_call_and_the_trust(desk):
    one, two, three, prompt = desk.session(), desk.session(), desk.session(), desk.b.prompt(1, 40)
    desk.begin(one, prompt)
    wait = desk.begin(two, prompt).wait
    got = desk.again(two, prompt, wait, CALL_S + GRACE_S)
    assert got.reason == "computing"
    got = desk.again(two, prompt, got.wait, 0.6 * CALL_S)
    assert (got.reason, got.wait) == ("never_seen", None)
    assert desk.waits == {SLOW: 1}
    assert desk.b.counters.inflight_broken == 1
    assert desk.begin(three, prompt).reason == "computing", "the second computes it now"
    desk.begin(one, desk.b.prompt(2, 40))
    assert desk.begin(three, desk.b.prompt(2, 40)).wait is None, "the liar's promises count for nothing"
    desk.b.now += computing.DISTRUST_S + 1
    desk.begin(one, desk.b.prompt(3, 40))
    assert desk.begin(two, desk.b.prompt(3, 40)).reason == "computing", "until it has been a while"


def test_what_one_call_computes_is_waited_for_as_long_as_computing_takes_and_a_quarter(desk):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 4)
    desk.begin(one, prompt)
    wait = desk.begin(two, prompt).wait
    assert desk.again(two, prompt, wait, CALL_S).reason == "computing"
    assert desk.again(two, prompt, wait, 0.1 * CALL_S).wait is not None, "as long as this one has waited"
    assert desk.again(two, prompt, replace(wait, waited_s=1.26 * CALL_S + GRACE_S), 0.0).wait is None


def test_an_owner_at_half_speed_is_left_when_computing_is_quicker(desk):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 40)
    desk.begin(one, prompt)
    wait = desk.begin(two, prompt).wait
    desk.compute(one, prompt, 0, 4, CALL_S)
    wait = desk.again(two, prompt, wait, CALL_S).wait
    assert wait is not None
    desk.compute(one, prompt, 4, 8, 2 * CALL_S)
    got = desk.again(two, prompt, replace(wait, waited_s=wait.waited_s + CALL_S), 0.0)
    assert (len(got.slots), got.wait) == (8, None)
    assert desk.waits == {CHEAPER: 1}


def test_who_has_waited_for_one_that_died_does_not_wait_for_the_next_as_long_again(desk):
    """What one call computes: a chain of owners that die must not add up."""
    one, two, three, prompt = desk.session(), desk.session(), desk.session(), desk.b.prompt(1, 4)
    desk.begin(one, prompt)
    second, third = desk.begin(two, prompt).wait, desk.begin(three, prompt).wait
    desk.b.now += 0.9 * CALL_S
    one.close()
    assert desk.begin(two, prompt, replace(second, waited_s=0.9 * CALL_S)).wait is None
    assert desk.begin(three, prompt, replace(third, waited_s=0.9 * CALL_S)).wait is None


def test_the_same_session_asks_again_and_does_not_wait_for_itself(desk):
    one, prompt = desk.session(), desk.b.prompt(1, 12)
    assert desk.begin(one, prompt, Wait(1)).wait is None
    assert desk.begin(one, prompt, Wait(2)).wait is None
    assert len(desk.marks) == 1


def test_a_request_waits_no_longer_than_its_call_allows_and_wakes_at_once(desk):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 12)
    desk.begin(one, prompt)

    async def both():
        loop = asyncio.get_running_loop()
        began = loop.time()
        got = await two.acquire(prompt, skip=0, deadline_s=0.1, wait=Wait(1))
        assert 0.04 < loop.time() - began < 1.0
        assert 0.04 < got.wait.waited_s < 1.0
        waiting = asyncio.ensure_future(two.acquire(prompt, skip=0, deadline_s=30.0, wait=got.wait))
        await asyncio.sleep(0)
        began = loop.time()
        desk.compute(one, prompt, 0, 12)
        got = await waiting
        assert (len(got.slots), loop.time() - began < 0.15) == (12, True)

    desk.run(both())


def test_a_session_that_ends_while_its_request_waits_gets_nothing(desk):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 12)
    desk.begin(one, prompt)

    async def ends():
        waiting = asyncio.ensure_future(two.acquire(prompt, skip=0, deadline_s=30.0, wait=Wait(1)))
        await asyncio.sleep(0)
        two.close()
        desk.compute(one, prompt, 0, 12)
        assert (await waiting).reason == "disconnected"

    desk.run(ends())


def test_clear_ends_all_promises(desk):
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 12)
    desk.begin(one, prompt)
    wait = desk.begin(two, prompt).wait
    desk.run(desk.b.store.clear())
    assert desk.begin(two, prompt, wait).wait is None


def test_marks_are_bounded_by_number_and_by_bytes(desk, monkeypatch):
    monkeypatch.setattr(computing, "MAX_OWNED", 3)
    one = desk.session()
    for name in range(10):
        desk.begin(one, desk.b.prompt(name, 8), Wait(name))
    assert len(desk.marks) == 3
    monkeypatch.setattr(computing, "MAX_TOKEN_BYTES", 40 * B * 4)
    two = desk.session()
    for name in range(20, 30):
        desk.begin(two, desk.b.prompt(name, 20), Wait(name))
    assert len(desk.marks) == 2
    desk.b.store.check()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_nobody_waits_beyond_what_computing_takes(bench, run, seed):
    """Sessions ask, compute, give up, end and lie at random: no request waits longer, all told, than it may."""
    rng, desk = random.Random(seed), Desk(bench, run, 96)
    prompts = [parted(desk.b, 24, at) for at in (13, 32, 60, 96)]
    sessions = [desk.session() for _ in range(4)]
    waiting: dict[tuple[int, int], tuple] = {}
    running: list[list] = []
    for step in range(400):
        desk.b.now += rng.choice((0.0, 0.05, CALL_S))
        at = rng.randrange(4)
        act = rng.random()
        if act < 0.1:
            sessions[at].close()
            running = [each for each in running if each[0] is not sessions[at]]
            waiting = {key: each for key, each in waiting.items() if each[0] is not sessions[at]}
            sessions[at] = desk.session()
        elif act < 0.5 and running:
            job = rng.choice(running)
            session, prompt, have, ticket = job
            end = min(have + CALL, 24)
            part = prompt[: end * B * 4]
            reserved = session.reserve(part, start=0, count=end)
            if reserved.lease and rng.random() < 0.1:
                session.abort(reserved.lease)
                running.remove(job)
            else:
                if reserved.lease:
                    session.commit(reserved.lease, desk.b.fill(session, reserved))
                job[2] = end
                if end == 24 or rng.random() < 0.05:
                    session.abandon(ticket)
                    running.remove(job)
        else:
            key = (at, step) if not waiting or rng.random() < 0.3 else rng.choice(list(waiting))
            session, prompt, wait, asked_s = waiting.pop(key, None) or (
                sessions[at],
                rng.choice(prompts),
                Wait(step),
                desk.b.now,
            )
            got = desk.begin(session, prompt, replace(wait, waited_s=desk.b.now - asked_s))
            most_s = computing.MOST_SHARE * 24 * B * TOKEN_S + GRACE_S
            if got.wait is not None:
                assert got.wait.waited_s <= most_s + 0.1
                waiting[key] = session, prompt, got.wait, asked_s
            elif rng.random() < 0.8:
                running.append([session, prompt, got.first + len(got.slots), wait.ticket])
            if got.lease:
                session.release(got.lease)
        if step % 20 == 0:
            desk.b.store.check()
    assert desk.b.counters.inflight_waits


def test_its_metrics_move(desk):
    registry = make_registry(desk.b.store.stats)
    read = registry.get_sample_value
    one, two, prompt = desk.session(), desk.session(), desk.b.prompt(1, 12)
    desk.begin(one, prompt)
    wait = desk.begin(two, prompt).wait
    assert read("kvterrace_inflight_marks_total") == 1
    desk.compute(one, prompt, 0, 12, CALL_S)
    desk.again(two, prompt, wait, CALL_S)
    assert read("kvterrace_inflight_waits_total", {"outcome": "loaded"}) == 1
    assert read("kvterrace_inflight_tokens_total") == 12 * B
    assert read("kvterrace_inflight_wait_seconds_total") == pytest.approx(CALL_S, abs=0.1)
    assert read("kvterrace_inflight_broken_marks_total") == 0
