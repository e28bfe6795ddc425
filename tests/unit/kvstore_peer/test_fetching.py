"""The holder's side: what it offers, what it refuses, and that every loan ends."""

import asyncio
import struct
from contextlib import aclosing

import pytest
import xxhash
from kvterrace.kvstore.peer import fetching
from kvterrace.kvstore.peer.client import PeerClient, PeerError
from kvterrace.kvstore.peer.fetching import CHUNK_BYTES, Fetching
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import block_keys

pytestmark = pytest.mark.unit


@pytest.fixture
def lender(peer_bench, tokens):
    return peer_bench.MemoryLender(tokens)


def request(peer_bench, tokens, /, **other) -> pb.FetchRequest:
    fields = {"wire_version": 1, "fingerprint": peer_bench.SPACE, "tokens": tokens, "deadline_s": 5.0, "node": "b"}
    return pb.FetchRequest(**(fields | other))


async def parts_of(served: Fetching, asked: pb.FetchRequest) -> list[pb.FetchPart]:
    return [part async for part in served.fetch(asked)]


@pytest.mark.parametrize("block_bytes", [1, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5])
async def test_offer_and_bytes_say_the_same(peer_bench, tokens, block_bytes):
    lender = peer_bench.MemoryLender(tokens, block_bytes=block_bytes)
    first, *chunks = await parts_of(Fetching(lender), request(peer_bench, tokens, first=3))
    offer = first.offer
    keys = block_keys(peer_bench.SPACE, tokens, peer_bench.B)[3:]
    assert (offer.count, offer.block_bytes, offer.keys) == (5, block_bytes, b"".join(keys))
    assert (offer.ticket, offer.bulk_address) == (b"", "")
    assert max(len(part.chunk.data) for part in chunks) <= CHUNK_BYTES
    data = b"".join(part.chunk.data for part in chunks)
    assert data == b"".join(peer_bench.content(key, block_bytes).tobytes() for key in keys)
    sums = [xxhash.xxh3_64_intdigest(data[at * block_bytes : (at + 1) * block_bytes]) for at in range(5)]
    assert offer.checksums == struct.pack("<5Q", *sums)
    assert len(chunks) == -(-5 * block_bytes // CHUNK_BYTES)
    assert lender.out == 0


async def test_what_is_not_there_is_an_offer_of_nothing(peer_bench, tokens, lender):
    served = Fetching(lender)
    for asked in (
        request(peer_bench, peer_bench.prompt(9, 4)),
        request(peer_bench, tokens, fingerprint=b"o" * 32),
        request(peer_bench, tokens, first=8),
        request(peer_bench, tokens, first=(1 << 32) - 1),
        request(peer_bench, b""),
    ):
        assert await parts_of(served, asked) == [pb.FetchPart(offer=pb.Offer())]
    assert lender.out == 0


async def test_the_lender_has_part_of_the_deadline(peer_bench, tokens, lender):
    await parts_of(Fetching(lender), request(peer_bench, tokens, deadline_s=4.0))
    assert lender.asked == [(0, 8, 2.0)]


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("wire_version", {"wire_version": 0}),
        ("wire_version", {"wire_version": 4}),
        ("fingerprint", {"fingerprint": b"short"}),
        ("fingerprint", {"fingerprint": b""}),
        ("tokens", {"tokens": b"xyz"}),
        ("deadline_s", {"deadline_s": -1.0}),
        ("deadline_s", {"deadline_s": 1e9}),
        ("deadline_s", {"deadline_s": float("nan")}),
        ("deadline_s", {"deadline_s": float("inf")}),
        ("node", {"node": ""}),
        ("node", {"node": "n" * 1000}),
    ],
)
async def test_nonsense_is_refused_by_name_before_anything_is_leased(peer_bench, tokens, lender, field, other):
    served = Fetching(lender)
    (part,) = await parts_of(served, request(peer_bench, tokens, **other))
    assert part.refused.field == field
    assert served.counts.refused == {field: 1}
    assert lender.asked == []


async def test_a_ticket_takes_the_loan_over(peer_bench, tokens, lender):
    tickets = Tickets()
    served = Fetching(lender, tickets, "127.0.0.1:9")
    (part,) = await parts_of(served, request(peer_bench, tokens, bulk=True))
    assert (part.offer.count, part.offer.bulk_address, len(part.offer.ticket)) == (8, "127.0.0.1:9", 16)
    assert lender.out == 1
    assert tickets.lent_bytes("b") == 8 * peer_bench.BLOCK_BYTES
    assert served.counts.lent_blocks == {"bulk": 8}
    tickets.close()
    assert lender.out == 0


async def test_without_room_for_a_ticket_or_without_the_wish_the_bytes_follow(peer_bench, tokens, lender):
    for tickets, bulk in ((Tickets(max_tickets=0), True), (Tickets(), False), (None, True)):
        served = Fetching(lender, tickets, "127.0.0.1:9")
        first, *chunks = await parts_of(served, request(peer_bench, tokens, bulk=bulk))
        assert not first.offer.ticket
        assert sum(len(part.chunk.data) for part in chunks) == 8 * peer_bench.BLOCK_BYTES
        assert served.counts.lent_bytes == {"grpc": 8 * peer_bench.BLOCK_BYTES}
        assert lender.out == 0


async def test_a_call_that_ends_early_ends_the_loan(peer_bench, tokens, lender):
    for parts in (1, 2):
        async with aclosing(Fetching(lender).fetch(request(peer_bench, tokens))) as answer:
            for _ in range(parts):
                await anext(answer)
            assert lender.out == 1
        assert lender.out == 0


async def test_a_ticket_that_was_never_told_is_revoked(peer_bench, tokens, lender):
    async with aclosing(Fetching(lender, Tickets(), "h:1").fetch(request(peer_bench, tokens, bulk=True))) as answer:
        assert (await anext(answer)).offer.ticket
        assert lender.out == 1
    assert lender.out == 0


async def test_a_reader_that_stalls_keeps_no_block_beyond_its_deadline(peer_bench, tokens, lender):
    answer = Fetching(lender).fetch(request(peer_bench, tokens, deadline_s=0.05))
    async with aclosing(answer):
        await anext(answer)
        await anext(answer)
        assert lender.out == 1
        await asyncio.sleep(0.1)
        assert lender.out == 0
        assert [part async for part in answer] == []  # not a byte of what may be someone else's now


async def test_a_caller_that_reads_no_further_keeps_no_block_beyond_its_deadline(peer_bench, tokens):
    """Whatever the connection still holds: the lease on the store's memory ends."""
    lender = peer_bench.MemoryLender(tokens, block_bytes=2_000_000)
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as server:
        client = PeerClient(server.address)
        async with client.fetch(request(peer_bench, tokens, deadline_s=0.3), timeout_s=30) as answer:
            assert (await answer.offer()).count == 8
            assert lender.out == 1
            await asyncio.sleep(0.5)
            assert lender.out == 0
            with pytest.raises(PeerError, match="broken"):
                await answer.read_into([memoryview(bytearray(2_000_000)) for _ in range(8)])
        await client.close()


async def test_a_lender_that_is_cancelled_or_fails_leaves_no_loan(peer_bench, tokens, lender):
    lender.gate.clear()
    task = asyncio.create_task(parts_of(Fetching(lender), request(peer_bench, tokens)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lender.out == 0


async def test_streams_are_bounded_and_the_rest_told_so(peer_bench, tokens, lender, monkeypatch):
    monkeypatch.setattr(fetching, "MAX_STREAMS", 2)
    served = Fetching(lender)
    running = [served.fetch(request(peer_bench, tokens)) for _ in range(2)]
    for each in running:
        await anext(each)
    (part,) = await parts_of(served, request(peer_bench, tokens))
    assert part.refused.field == "busy"
    assert lender.out == 2
    for each in running:
        await each.aclose()
    assert lender.out == 0
    assert len(await parts_of(served, request(peer_bench, tokens))) > 1
