"""A store that waits for what another node computes. The other one is a store too, asked through the calls of a node's
service; only the wire is missing."""

import asyncio

import pytest
from kvterrace.kvstore import following
from kvterrace.kvstore.elsewhere import Holder
from kvterrace.kvstore.following import Claimed
from kvterrace.kvstore.types import Wait

from .lower_bench import B, FakeTier, LowerBench
from .test_elsewhere import Neighbour as Holding

pytestmark = pytest.mark.unit

CALL, CALL_S = 4, 0.3  # blocks of a call of the model


class Neighbour(Holding):
    """It also computes: `claimed` blocks, when it says so."""

    def __init__(self, other: LowerBench, claimed: int) -> None:
        super().__init__(other, 0)
        self.claimed = claimed
        self.mine: list[bytes] = []
        self.withdrawn: list[bytes] = []
        self.silent = False
        self.hangs = False
        self.questions = 0

    async def find_or_claim(self, fingerprint, keys, first, *, compute_s, deadline_s):
        self.asked += 1
        assert compute_s >= following.LONG_S
        holders = [Holder("a", self.known)] if self.known > first else []
        if self.claimed > first:
            return Claimed(holders, "a", self.claimed)
        self.mine = list(keys)
        return Claimed(holders, "b", mine=True, claim=self.mine)

    def withdraw(self, fingerprint, claim):
        self.withdrawn += claim

    async def progress(self, fingerprint, tokens, first, *, wait_s):
        self.questions += 1
        if self.silent:
            return None
        if self.hangs:
            await asyncio.sleep(30)
        return await self.other.store.progress(fingerprint, tokens, first, wait_s)


@pytest.fixture
async def pair():
    made: list[LowerBench] = []

    def make(claimed: int) -> tuple[LowerBench, LowerBench, Neighbour]:
        a, b = LowerBench(64, FakeTier()), LowerBench(64, FakeTier())
        for each in (a, b):
            each.session.observe([(0, CALL * B, CALL_S)] * 8)
        neighbour = Neighbour(a, claimed)
        b.store.join(neighbour)
        made.extend((a, b))
        return a, b, neighbour

    yield make
    for each in made:
        each.store.check()
        await each.store.stop(1.0)
        assert not each.store._bringer.following._tasks
        each.store.close()


async def begin(bench, tokens, ticket=1):
    return await bench.session.acquire(tokens, skip=0, deadline_s=1.0, wait=Wait(ticket))


async def served(bench, tokens, ticket=1):
    """As an engine: as often as it is told to ask again. How often that was, and what it got."""
    got, times = await begin(bench, tokens, ticket), 0
    while got.wait is not None:
        times += 1
        got = await bench.session.acquire(tokens, skip=0, deadline_s=1.0, wait=got.wait)
    bench.session.release(got.lease)
    bench.store.check()
    return times, got


async def test_what_another_node_computes_is_waited_for_and_fetched(pair):
    a, b, neighbour = pair(16)
    prompt = a.prompt(1, 16)
    assert (await begin(a, prompt)).wait is None
    waiting = asyncio.create_task(served(b, prompt))
    for end in (4, 8, 12, 16):
        await asyncio.sleep(0.03)
        a.save(prompt[: end * B * 4])
    times, got = await waiting
    assert times >= 1
    assert got.tiers == {"peer": 16 * B}
    assert dict(b.counters.inflight_waits) == {"loaded": 1}
    assert b.counters.inflight_tokens == 16 * B
    assert neighbour.asked == 1, "whom it waited for is asked directly"
    assert neighbour.fetched == list(range(16))


async def test_many_requests_follow_with_one_question(pair):
    a, b, neighbour = pair(16)
    prompt = a.prompt(1, 16)
    await begin(a, prompt)
    waiting = [asyncio.create_task(served(b, prompt, ticket)) for ticket in range(5)]
    await asyncio.sleep(0.05)
    assert neighbour.questions == 1
    a.save(prompt)
    for got in await asyncio.gather(*waiting):
        assert len(got[1].slots) == 16
    assert neighbour.fetched == list(range(16)), "fetched once"


async def test_one_that_gives_up_leaves_what_it_has_and_the_rest_is_ours(pair):
    a, b, _ = pair(16)
    prompt = a.prompt(1, 16)
    await begin(a, prompt, ticket=9)
    waiting = asyncio.create_task(served(b, prompt))
    await asyncio.sleep(0.03)
    a.save(prompt[: 8 * B * 4])
    await asyncio.sleep(0.03)
    a.session.abandon(9)
    _, got = await waiting
    assert got.tiers == {"peer": 8 * B}
    assert dict(b.counters.inflight_waits) == {"owner_gone": 1}
    other = b.store.open_session(b.session.namespace, client="other")
    again = await other.acquire(prompt, skip=0, deadline_s=1.0, wait=Wait(1))
    assert again.reason == "computing", "this node computes the rest"


@pytest.mark.parametrize("how", ["silent", "never"])
async def test_a_claim_without_anything_behind_it_costs_little(pair, how, monkeypatch):
    a, b, neighbour = pair(16)
    neighbour.silent = how == "silent"
    loop = asyncio.get_running_loop()
    began = loop.time()
    times, got = await served(b, a.prompt(1, 16))
    assert loop.time() - began < 2.0
    assert (times < 10, got.reason) == (True, "never_seen")
    assert sum(b.counters.inflight_waits.values()) <= 1


async def test_a_node_that_hangs_is_left_after_a_call_without_news(pair):
    a, b, neighbour = pair(16)
    neighbour.hangs = True
    loop = asyncio.get_running_loop()
    began = loop.time()
    times, got = await served(b, a.prompt(1, 16))
    assert 0.3 < loop.time() - began < 3.0
    assert (times > 0, got.reason) == (True, "never_seen")
    assert dict(b.counters.inflight_waits) == {"too_slow": 1}
    await served(b, a.prompt(2, 16))
    assert sum(b.counters.inflight_waits.values()) == 1, "it is not trusted for a while"


async def test_our_claim_is_withdrawn_once_when_all_is_there_or_the_engine_leaves(pair):
    _, b, neighbour = pair(0)
    for name, ends in ((1, "saved"), (2, "closed")):
        neighbour.withdrawn.clear()
        prompt = b.prompt(name, 16)
        assert (await begin(b, prompt)).reason == "never_seen"
        assert len(neighbour.mine) == 16
        assert not neighbour.withdrawn
        if ends == "saved":
            b.save(prompt)
        else:
            b.session.close()
        assert neighbour.withdrawn == neighbour.mine


async def test_short_prompts_and_requests_that_do_not_wait_claim_nothing(pair):
    _, b, neighbour = pair(16)
    assert (await begin(b, b.prompt(1, 2))).reason == "never_seen"
    assert (await b.acquire(b.prompt(2, 16))).reason == "never_seen"
    assert not neighbour.mine
    assert not b.counters.inflight_waits
