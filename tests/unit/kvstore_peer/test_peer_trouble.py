"""A peer that misbehaves: answers too much, other things, too late, nothing; what that costs, and for how long."""

import asyncio
import time

import grpc
import pytest
from kvterrace.kvstore.tiers import Failed, Hit
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

WRONG_OFFERS = {
    "more blocks": {"count": 9},
    "other keys": {"keys": b"k" * 256},
    "another block size": {"block_bytes": 4096},
    "checksums missing": {"checksums": b""},
    "an absurd count": {"count": (1 << 32) - 1, "keys": b"", "checksums": b""},
    "a ticket nobody asked for": {"ticket": b"t" * 16, "bulk_address": "127.0.0.1:1"},
}


@pytest.mark.parametrize("other", WRONG_OFFERS.values(), ids=WRONG_OFFERS)
async def test_an_offer_that_does_not_fit_writes_nothing(peer_bench, tokens, scripted, other):
    wanted = peer_bench.ask(tokens)

    async def answer(request, context):
        await context.write(peer_bench.offer_of(wanted, **other))
        await context.write(peer_bench.chunk(peer_bench.bytes_of(wanted)))

    _, tier = await scripted(answer)
    assert await tier.get(wanted, deadline_s=5) == [Failed("corrupt")] * 8
    assert not any(each.into.any() for each in wanted)
    assert tier._counts.fetches == {("none", "protocol"): 1}


async def test_bytes_cut_anywhere_arrive_and_more_or_fewer_do_not_count(peer_bench, tokens, scripted):
    wanted = peer_bench.ask(tokens)[:3]
    data = peer_bench.bytes_of(wanted)
    sent = []

    async def answer(request, context):
        await context.write(peer_bench.offer_of(wanted))
        for piece in sent:
            await context.write(peer_bench.chunk(piece))

    _, tier = await scripted(answer)
    cases = (
        ([data], Hit),
        ([data[:1], b"", data[1:150_000], data[150_000:]], Hit),
        ([data, b"!"], Failed("corrupt")),
        ([data[:-1]], Failed("io")),
        ([], Failed("io")),
    )
    for pieces, expected in cases:
        sent[:] = pieces
        for each in wanted:
            each.into[:] = 0
        got = await tier.get(wanted, deadline_s=5)
        assert all(answer == expected or type(answer) is expected for answer in got), pieces
        assert not any(each.into[each.block_bytes :].any() for each in wanted)


async def test_a_reader_slower_than_the_sender_loses_nothing(peer_bench, tokens, scripted):
    """The call has long ended at the other side when its last parts are read."""
    wanted = peer_bench.ask(tokens, block_bytes=1000)
    data = peer_bench.bytes_of(wanted)

    async def answer(request, context):
        await context.write(peer_bench.offer_of(wanted))
        for at in range(0, len(data), 500):
            await context.write(peer_bench.chunk(data[at : at + 500]))

    servicer, tier = await scripted(answer)
    client = tier.client
    async with client.fetch(pb.FetchRequest(), timeout_s=5) as reading:
        await peer_bench.until(lambda: servicer.requests and not servicer.running)
        await asyncio.sleep(0.2)
        assert (await reading.offer()).count == 8
        await asyncio.sleep(0.1)
        into = bytearray(len(data))
        await reading.read_into([memoryview(into)])
    assert into == data


async def test_parts_in_another_order_are_not_believed(peer_bench, tokens, scripted):
    wanted = peer_bench.ask(tokens)[:1]
    parts = []

    async def answer(request, context):
        for part in parts:
            await context.write(part)

    _, tier = await scripted(answer)
    offer, data = peer_bench.offer_of(wanted), peer_bench.chunk(peer_bench.bytes_of(wanted))
    for sent, reason in (([data, offer], "corrupt"), ([offer, offer, data], "corrupt"), ([pb.FetchPart()], "corrupt")):
        parts[:] = sent
        assert await tier.get(wanted, deadline_s=5) == [Failed(reason)]
        tier._breaker.success()
    parts[:] = []
    assert await tier.get(wanted, deadline_s=5) == [Failed("io")]


async def test_another_wire_version_is_noticed_once_and_not_asked_again(peer_bench, tokens, scripted):
    async def answer(request, context):
        await context.write(pb.FetchPart(refused=pb.Refused(field="wire_version", ours="2", theirs="1")))

    servicer, tier = await scripted(answer)
    assert await tier.get(peer_bench.ask(tokens)[:1], deadline_s=5) == [Failed("io")]
    assert await tier.get(peer_bench.ask(tokens)[:1], deadline_s=5) == [Failed("breaker")]
    assert len(servicer.requests) == 1
    assert "version" in tier.state()


async def test_a_node_that_knows_no_fetch_is_not_asked_again(peer_bench, tokens, open_tier):
    async with peer_bench.Server(peer_bench.KVStoreServicer()) as server:
        tier = open_tier(server.address)
        assert await tier.get(peer_bench.ask(tokens)[:1], deadline_s=5) == [Failed("io")]
        assert await tier.get(peer_bench.ask(tokens)[:1], deadline_s=5) == [Failed("breaker")]


async def test_a_busy_peer_is_no_broken_peer(peer_bench, tokens, scripted):
    async def answer(request, context):
        await context.write(pb.FetchPart(refused=pb.Refused(field="busy")))

    servicer, tier = await scripted(answer)
    for _ in range(5):
        assert await tier.get(peer_bench.ask(tokens)[:1], deadline_s=5) == [Failed("io")]
    assert len(servicer.requests) == 5
    assert tier.state() == ""


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED])
async def test_a_call_that_the_peer_ends_is_an_answer_not_an_exception(peer_bench, tokens, scripted, code):
    async def answer(request, context):
        await context.write(peer_bench.offer_of(peer_bench.ask(tokens)))
        await context.abort(code, "no more")

    _, tier = await scripted(answer)
    assert await tier.get(peer_bench.ask(tokens), deadline_s=5) == [Failed("io")] * 8
    assert tier._counts.fetches == {("none", "broken"): 1}


async def test_a_peer_that_hangs_costs_the_deadline_and_no_more_and_hears_of_the_end(peer_bench, tokens, scripted):
    servicer, tier = await scripted(peer_bench.hang)
    started = time.monotonic()
    assert await tier.get(peer_bench.ask(tokens), deadline_s=0.2) == [Failed("deadline")] * 8
    assert time.monotonic() - started < 1
    await peer_bench.until(lambda: servicer.running == 0)


async def test_after_the_deadline_nothing_is_written(peer_bench, tokens, scripted):
    wanted = peer_bench.ask(tokens)
    written = asyncio.Event()

    async def answer(request, context):
        await context.write(peer_bench.offer_of(wanted))
        await context.write(peer_bench.chunk(b"\x01" * 1000))
        try:
            await asyncio.sleep(0.25)
            await context.write(peer_bench.chunk(b"\x01" * 10_000))
        finally:
            written.set()

    _, tier = await scripted(answer)
    got = await tier.get(wanted, deadline_s=0.2)
    assert got == [Failed("deadline")] * 8
    for each in wanted:
        each.into[:] = 0
    await written.wait()
    await asyncio.sleep(0.1)
    assert not any(each.into.any() for each in wanted)


async def test_the_breaker_opens_after_failures_probes_and_closes(peer_bench, tokens, scripted):
    now, works = 0.0, False
    wanted = peer_bench.ask(tokens)[:1]

    async def answer(request, context):
        if not works:
            await context.abort(grpc.StatusCode.INTERNAL, "broken")
        await context.write(peer_bench.offer_of(wanted))
        await context.write(peer_bench.chunk(peer_bench.bytes_of(wanted)))

    servicer, tier = await scripted(answer, clock=lambda: now)
    for _ in range(3):
        assert await tier.get(wanted, deadline_s=5) == [Failed("io")]
    for _ in range(10):
        assert await tier.get(wanted, deadline_s=5) == [Failed("breaker")]
    assert len(servicer.requests) == 3
    assert "paused" in tier.state()
    now = 1.1
    assert await tier.get(wanted, deadline_s=5) == [Failed("io")]  # the probe
    assert await tier.get(wanted, deadline_s=5) == [Failed("breaker")]
    now, works = 4.0, True
    (got,) = await tier.get(wanted, deadline_s=5)
    assert isinstance(got, Hit)
    assert tier.state() == ""
    assert tier._counts.fetches["none", "breaker"] == 11


async def test_an_address_where_nobody_listens_is_found_out_at_once(peer_bench, tokens, open_tier):
    async with peer_bench.Server(peer_bench.KVStoreServicer()) as server:
        address = server.address
    tier = open_tier(address)
    started = time.monotonic()
    assert await tier.get(peer_bench.ask(tokens), deadline_s=10) == [Failed("io")] * 8
    assert time.monotonic() - started < 5
    assert tier._counts.fetches == {("none", "unreachable"): 1}
