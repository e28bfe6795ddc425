"""PeerTier by gRPC alone: what comes, in what time, and that everything ends."""

import asyncio
import time

import numpy as np
import pytest
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.service.frames import WIRE_VERSION
from kvterrace.kvstore.tiers import Failed, Hit, Miss
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit


async def test_blocks_come_in_order_with_their_checksums(peer_bench, tokens, open_tier):
    lender = peer_bench.MemoryLender(tokens)
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as server:
        tier = open_tier(server.address)
        wanted = peer_bench.ask(tokens, 2)
        got = await tier.get(wanted, deadline_s=5)
        assert all(isinstance(answer, Hit) for answer in got)
        assert all(peer_bench.right(each) for each in wanted)
        assert lender.out == 0
    counts = tier._counts
    assert counts.read_bytes == {"grpc": 6 * peer_bench.BLOCK_BYTES}
    assert counts.fetches == {("grpc", "ok"): 1}
    assert counts.read_s["grpc"] > 0


async def test_a_prompt_that_goes_on_differently_is_served_as_far_as_it_is_shared(peer_bench, tokens, open_tier):
    size = peer_bench.B * 4
    other = tokens[: 5 * size] + peer_bench.prompt(2, 3)
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(peer_bench.MemoryLender(tokens)))) as server:
        tier = open_tier(server.address)
        wanted = peer_bench.ask(other)
        got = await tier.get(wanted, deadline_s=5)
        assert [type(answer) for answer in got] == [Hit] * 5 + [Miss] * 3
        assert await tier.get(peer_bench.ask(peer_bench.prompt(3, 2)), deadline_s=5) == [Miss(), Miss()]
    assert tier._counts.fetches["none", "empty"] == 1


async def test_a_batch_of_several_prompts_is_answered_in_its_order(peer_bench, tokens, open_tier):
    second, absent = peer_bench.prompt(2, 2), peer_bench.prompt(3, 1)
    lender = peer_bench.MemoryLender(tokens, second)
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as server:
        wanted = [*peer_bench.ask(absent), *peer_bench.ask(tokens, 6), *peer_bench.ask(second), *peer_bench.ask(absent)]
        wanted.insert(3, peer_bench.ask(tokens, prompt=b"")[0])
        got = await open_tier(server.address).get(wanted, deadline_s=5)
    assert [type(answer) for answer in got] == [Miss, Hit, Hit, Miss, Hit, Hit, Miss]
    assert all(peer_bench.right(each) for each, answer in zip(wanted, got, strict=True) if isinstance(answer, Hit))


async def test_a_damaged_block_is_not_its_neighbours_trouble(peer_bench, tokens, open_tier):
    lender = peer_bench.MemoryLender(tokens)
    lender.damage = {3}
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as server:
        tier = open_tier(server.address)
        got = await tier.get(peer_bench.ask(tokens), deadline_s=5)
    assert [type(answer) for answer in got] == [Hit] * 3 + [Failed] + [Hit] * 4
    assert got[3] == Failed("corrupt")
    assert tier._counts.corrupt_blocks == 1


async def test_no_time_is_no_question(peer_bench, tokens, scripted):
    servicer, tier = await scripted(peer_bench.hang)
    for deadline_s in (0.0, -1.0):
        assert await tier.get(peer_bench.ask(tokens), deadline_s=deadline_s) == [Failed("deadline")] * 8
    assert servicer.requests == []
    assert tier.state() == ""


async def test_what_is_told_of_the_deadline_is_what_is_left(peer_bench, tokens, scripted):
    async def answer(request, context):
        await context.write(pb.FetchPart(offer=pb.Offer()))

    servicer, tier = await scripted(answer)
    await tier.get(peer_bench.ask(tokens, 2), deadline_s=3)
    await tier.get(peer_bench.ask(tokens), deadline_s=1e6)  # more than a peer accepts
    first, second = servicer.requests
    assert 2.5 < first.deadline_s <= 3
    assert 59 < second.deadline_s <= 60
    assert (first.wire_version, first.fingerprint, first.first) == (WIRE_VERSION, peer_bench.SPACE, 2)
    assert (first.tokens, first.bulk, first.node) == (tokens, False, "b")


async def test_the_longest_prompt_with_a_full_run_can_be_asked_for(peer_bench, open_tier):
    long = peer_bench.prompt(1, 131_072 // peer_bench.B)
    lender = peer_bench.MemoryLender(long, block_bytes=8)
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as server:
        first = len(long) // 16 - 64
        wanted = peer_bench.ask(long, first, block_bytes=8)
        got = await open_tier(server.address).get(wanted, deadline_s=20)
    assert all(isinstance(answer, Hit) for answer in got)


async def test_a_cancelled_get_ends_the_call_and_the_loan(peer_bench, tokens, open_tier):
    lender = peer_bench.MemoryLender(tokens, block_bytes=5_000_000)
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as server:
        tier = open_tier(server.address)
        wanted = peer_bench.ask(tokens, block_bytes=5_000_000)
        task = asyncio.create_task(tier.get(wanted, deadline_s=30))
        await peer_bench.until(wanted[0].into.any)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for each in wanted:
            each.into[:] = 0
        await peer_bench.until(lambda: lender.out == 0)
        assert not any(each.into.any() for each in wanted)
        assert tier.in_flight_bytes == 0
        assert tier.state() == ""


async def test_even_a_get_that_is_cancelled_twice_ends_only_when_nothing_writes_any_more(
    peer_bench, tokens, open_tier, monkeypatch
):
    tier, let_go = open_tier("127.0.0.1:1"), asyncio.Event()

    async def stubborn(run, by):
        try:
            await asyncio.sleep(60)
        finally:
            await let_go.wait()

    monkeypatch.setattr(tier, "_bring", stubborn)
    task = asyncio.create_task(tier.get(peer_bench.ask(tokens), deadline_s=30))
    for _ in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
    await asyncio.sleep(0.01)
    assert not task.done()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_close_gives_up_what_is_under_way(peer_bench, tokens, scripted):
    servicer, tier = await scripted(peer_bench.hang)
    task = asyncio.create_task(tier.get(peer_bench.ask(tokens), deadline_s=30))
    await peer_bench.until(lambda: servicer.running == 1)
    await tier.close()
    assert await task == [Failed("io")] * 8
    assert await tier.get(peer_bench.ask(tokens), deadline_s=1) == [Miss()] * 8
    await peer_bench.until(lambda: servicer.running == 0)


async def test_bytes_in_flight_from_a_peer_are_bounded(peer_bench, open_tier):
    prompts = [peer_bench.prompt(name, 4) for name in range(6)]
    lender = peer_bench.MemoryLender(*prompts)
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as server:
        tier = open_tier(server.address, in_flight_bytes=8 * peer_bench.BLOCK_BYTES)
        lender.gate.clear()
        gets = [asyncio.create_task(tier.get(peer_bench.ask(each), deadline_s=10)) for each in prompts]
        await peer_bench.until(lambda: len(lender.asked) == 2)
        await asyncio.sleep(0.05)
        assert len(lender.asked) == 2
        late = await tier.get(peer_bench.ask(prompts[0]), deadline_s=0.05)
        assert late == [Failed("deadline")] * 4
        assert tier._counts.fetches["none", "queue"] == 1
        lender.gate.set()
        answers = await asyncio.gather(*gets)
        assert all(isinstance(answer, Hit) for got in answers for answer in got)
        assert lender.most <= 2
        assert tier.state() == ""  # waiting for one's turn says nothing about the peer


async def test_hashing_that_is_late_says_until_when_the_memory_is_read(peer_bench, tokens, scripted, monkeypatch):
    wanted = peer_bench.ask(tokens)[:1]

    async def answer(request, context):
        await context.write(peer_bench.offer_of(wanted))
        await context.write(peer_bench.chunk(peer_bench.bytes_of(wanted)))

    def slow(views):
        time.sleep(0.6)
        return [0] * len(views)

    monkeypatch.setattr("kvterrace.kvstore.peer.tier._hash", slow)
    _, tier = await scripted(answer)
    (got,) = await tier.get(wanted, deadline_s=0.3)
    assert isinstance(got, Failed)
    assert got.reason == "deadline"
    assert not got.until.is_set()
    await asyncio.wait_for(got.until.wait(), 5)


async def test_the_loop_runs_on_while_blocks_are_hashed(peer_bench, tokens, scripted, monkeypatch):
    wanted = peer_bench.ask(tokens)[:1]

    async def answer(request, context):
        await context.write(peer_bench.offer_of(wanted))
        await context.write(peer_bench.chunk(peer_bench.bytes_of(wanted)))

    monkeypatch.setattr("kvterrace.kvstore.peer.tier._hash", lambda views: time.sleep(0.3) or [0])
    _, tier = await scripted(answer)
    task, ticks = asyncio.create_task(tier.get(wanted, deadline_s=5)), 0
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert task.result() == [Failed("corrupt")]
    assert ticks > 10


async def test_memory_behind_a_view_is_not_held_after_get(peer_bench, tokens, open_tier):
    """An arena is unmapped only when no view of it is left."""
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(peer_bench.MemoryLender(tokens)))) as server:
        tier = open_tier(server.address)
        backing = bytearray(peer_bench.BLOCK_BYTES)
        wanted = peer_bench.ask(tokens, into=np.frombuffer(backing, np.uint8))[:1]
        assert isinstance((await tier.get(wanted, deadline_s=5))[0], Hit)
        del wanted
        backing.append(0)  # BufferError while it is exported
