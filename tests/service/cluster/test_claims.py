"""Claims in a real Valkey: of nodes that ask for the same new prompt one computes, and the others are told who."""

import asyncio

import pytest
from kvterrace.kvstore.cluster import computing
from redis.cluster import key_slot

from .conftest import SPACE, ask, keys_of, say, until

pytestmark = pytest.mark.service


async def claim(node, keys, first=0, *, compute_s=1.0):
    return await node.find_or_claim(SPACE, keys[first:], first, compute_s=compute_s, deadline_s=1.0)


async def claims(town) -> list[bytes]:
    return [name for name in await town.names() if b":computing:" in name]


async def test_of_many_that_ask_at_once_one_computes(town):
    nodes = [await town.node(name) for name in "abcd"]
    await town.meet(*nodes)
    for round_ in range(10):
        keys = keys_of(round_, 100)
        found = await asyncio.gather(*(claim(each, keys) for each in nodes))
        mine = [node for node, each in zip(nodes, found, strict=True) if each.mine]
        assert len(mine) == 1
        others = [(each.node, each.blocks) for each in found if not each.mine]
        assert others == [(mine[0].member.node, 100)] * 3
    assert sum(each.counters.claimed for each in nodes) == 10
    assert sum(each.counters.claims_found for each in nodes) == 30


async def test_a_claim_covers_what_is_the_same_and_lies_behind_what_somebody_has(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("long", 96)
    await say(a, keys[:32])
    assert (await claim(a, keys, 32)).mine
    parted = [*keys[:70], *keys_of("other", 40)]
    found = await claim(b, parted)
    assert [(each.node, each.blocks) for each in found.holders] == [("a", 32)]
    assert (found.node, found.blocks) == ("a", 64), "the deepest mark of both"
    assert (await claim(b, keys_of("new", 20))).node != "a"
    elsewhere = await claim(b, [*keys[:40], *keys_of("early", 40)])
    assert elsewhere.mine, "the next mark of this one is not what the other computes"


async def test_what_is_withdrawn_is_free_and_what_is_done_is_found(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("long", 64)
    mine = await claim(a, keys)
    assert (await claim(b, keys)).node == "a"
    b.withdraw(SPACE, mine.claim)
    await asyncio.sleep(0.1)
    assert (await claim(b, keys)).node == "a", "another node's claim is not its to withdraw"
    a.withdraw(SPACE, mine.claim)
    await until(lambda: not a._withdrawing)
    assert await claims(town) == []
    await say(a, keys)
    found = await claim(b, keys)
    assert [(each.node, each.blocks) for each in found.holders] == [("a", 64)]
    assert not found.node
    assert await claims(town) == [], "there is nothing left to compute"


async def test_the_claim_of_a_node_that_is_gone_is_nobodys(town):
    a, b, c = [await town.node(name) for name in "abc"]
    await town.meet(a, b, c)
    keys = keys_of("long", 64)
    await claim(a, keys)
    await a.stop()
    await until(lambda: "a" not in {member.node for member in b.members()})
    assert (await claim(b, keys)).mine


async def test_a_claim_lives_as_long_as_computing_may_take(town, monkeypatch):
    monkeypatch.setattr(computing, "LIFE_S", 0.1)
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("long", 64)
    await claim(a, keys, compute_s=0.05)
    assert (await claim(b, keys)).node == "a"
    await asyncio.sleep(0.3)
    assert (await claim(b, keys, compute_s=0.05)).mine
    await asyncio.sleep(0.3)
    assert await claims(town) == []


async def test_nonsense_under_a_claims_key_is_nobodys_claim(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("long", 64)
    names = computing.Claims._prefix(a._claims, SPACE).encode()
    epoch = f"{a.member.epoch:016x}".encode()
    async with town.client() as client:
        for value in (b"", b"x" * 500, epoch + b"\xff\xfe", epoch, b"0" * 16 + b"a"):
            for key in keys:
                await client.set(names + key, value)
            assert (await claim(b, keys)).node in {"", "b"}
            await client.flushdb()
            await asyncio.sleep(0)
        for key in keys:
            await client.hset(names + key, "f", "v")
    await claim(b, keys)


async def test_it_takes_one_round_trip_and_all_of_it_is_in_one_slot(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("longest", 8192)
    assert (await claim(a, keys)).mine
    async with town.client() as client:
        before = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        found = await claim(b, keys)
        calls = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] - before
    assert (found.node, found.blocks) == ("a", 8192)
    assert calls <= 3, "one, and perhaps the beats of both"
    mark, ours = a._directory.prefix(SPACE), a._claims._prefix(SPACE)
    assert key_slot(mark.encode()) == key_slot(ours.encode())


async def test_without_valkey_there_are_no_claims_and_nothing_waits(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    town.kill()
    found = await claim(a, keys_of("long", 64))
    assert (found.holders, found.node, found.mine) == ([], "", False)
    a.withdraw(SPACE, keys_of("long", 4))


async def test_a_plain_lookup_claims_nothing(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    assert await ask(b, keys_of("long", 64)) == []
    assert await claims(town) == []
