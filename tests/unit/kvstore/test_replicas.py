"""Which blocks of a store are replicas, and when they stop being that."""

import asyncio

import pytest
from kvterrace.kvstore.replicas import PERIOD_S, Replicas

from .lower_bench import FakeTier, LowerBench
from .test_elsewhere import Neighbour

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now = 10 * PERIOD_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def pair():
    """A store that asks, and how to have it fetch a prompt of so many blocks from node "a"."""
    a, b = LowerBench(64, FakeTier()), LowerBench(16, FakeTier())

    async def fetch(prompt: int, blocks: int):
        a.save(a.prompt(prompt, blocks))
        b.store.join(Neighbour(a, blocks))
        got = await b.acquire(b.prompt(prompt, blocks))
        assert list(got.tiers) == ["peer"]
        return got

    yield b, fetch
    for each in (a, b):
        each.store.check()
        await each.store.stop(1.0)
        each.store.close()


def origins(bench: LowerBench, tokens: bytes) -> list[int]:
    (space,) = bench.store._spaces.values()
    return space.index.col("ret.origin")[space.index.match(tokens).blocks].tolist()


async def test_what_a_member_still_has_is_a_replica_until_that_member_goes(pair):
    b, fetch = pair
    replicas = b.store.stock.replicas
    replicas.keep({"a": 1, "c": 1})
    await fetch(1, 4)
    assert set(origins(b, b.prompt(1, 4))) == {replicas.origin("a")}
    assert replicas.warmth().replica_bytes > 0
    b.store.check()
    replicas.keep({"a": 1})
    assert all(origins(b, b.prompt(1, 4))), "another one's leaving changes nothing"
    replicas.keep({"a": 2})  # it has started anew, with an empty memory
    assert not any(origins(b, b.prompt(1, 4)))
    warmth = replicas.warmth()
    assert (warmth.replica_bytes, warmth.hot_last_bytes) == (0, warmth.last_bytes)


async def test_what_comes_from_nobody_who_stays_is_a_last_copy(pair):
    b, fetch = pair
    await fetch(1, 4)
    assert origins(b, b.prompt(1, 4)) == [0] * 4


async def test_what_was_computed_here_behind_a_replica_is_none(pair):
    b, fetch = pair
    b.store.stock.replicas.keep({"a": 1})
    await fetch(1, 4)
    b.store.join(None)
    b.save(b.prompt(1, 6))
    got = origins(b, b.prompt(1, 6))
    assert all(got[:4])
    assert got[4:] == [0, 0]


async def test_replicas_leave_before_last_copies_as_old(pair):
    b, fetch = pair
    b.store.stock.replicas.keep({"a": 1})
    b.save(b.prompt(7, 4))
    got = await fetch(1, 8)
    b.session.release(got.lease)
    b.store.join(None)
    await asyncio.sleep(0.5)  # the last copies are the older ones by far less than that
    b.save(b.prompt(9, 8))  # of 16 slots, 12 are taken
    assert len(origins(b, b.prompt(7, 4))) == 4
    assert len(origins(b, b.prompt(1, 8))) == 4


def test_what_was_fetched_long_ago_is_not_believed_to_be_there_still():
    clock = Clock()
    replicas = Replicas({}, clock)
    replicas.keep({"a": 1, "b": 1})
    first = replicas.origin("a")
    assert first == replicas.origin("a") != replicas.origin("b")
    assert replicas.origin("nobody") == 0
    clock.now += PERIOD_S
    second = replicas.origin("a")
    assert second != first
    clock.now += PERIOD_S
    replicas.origin("a")
    assert first in replicas._free
    assert second not in replicas._free
    replicas.check()


def test_a_node_for_which_no_mark_is_left_gives_last_copies():
    replicas = Replicas({}, Clock())
    del replicas._free[2:]
    replicas.keep({"a": 1, "b": 1, "c": 1})
    assert [replicas.origin(node) > 0 for node in "abc"] == [True, True, False]
    replicas.keep({"c": 1})
    assert replicas.origin("c") > 0
    replicas.check()


def test_what_comes_from_a_node_that_has_gone_meanwhile_is_a_last_copy():
    replicas = Replicas({}, Clock())
    replicas.keep({"a": 1})
    now, later = replicas.tracing("a"), replicas.tracing("a")
    assert now() == replicas.origin("a") > 0
    replicas.keep({"b": 1})
    assert later() == 0
    replicas.keep({"a": 2})
    assert later() == 0, "that is another process"
    replicas.check()
