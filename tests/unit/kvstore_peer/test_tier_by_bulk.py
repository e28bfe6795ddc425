"""PeerTier with the bulk channel: bytes come by it when it works, by gRPC when it does not, and it is tried again."""

import asyncio
import time

import pytest
from kvterrace.kvstore.peer.bulk_client import BulkClient, BulkError
from kvterrace.kvstore.peer.bulk_server import BulkServer
from kvterrace.kvstore.peer.client import PeerClient
from kvterrace.kvstore.peer.counts import FetchCounts
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.kvstore.peer.tier import PeerTier
from kvterrace.kvstore.tiers import Failed, Hit

pytestmark = pytest.mark.unit


class Pair:
    """A holder with both channels, and a tier that asks it. `now`: the tier's clock. trouble: a BulkError's reason,
    raised instead of each bulk transfer, or "hang"."""

    def __init__(self, bench, lender, tickets: Tickets) -> None:
        self.bench, self.lender, self.tickets = bench, lender, tickets
        self.now, self.trouble = 0.0, ""
        self.bulk_server = BulkServer("127.0.0.1", 0, tickets)
        self.bulk = BulkClient()

    async def __aenter__(self):
        await self.bulk_server.start()
        self.fetching = Fetching(self.lender, self.tickets, self.bulk_server.address)
        self.server = await self.bench.Server(self.bench.PeerServicer(self.fetching)).__aenter__()
        self.counts = FetchCounts()
        self.tier = PeerTier(PeerClient(self.server.address), "b", self, self.counts, clock=lambda: self.now)
        return self

    async def __aexit__(self, *_):
        await self.tier.close()
        await self.bulk.close()
        await self.server.__aexit__()
        await self.bulk_server.stop()
        self.tickets.close()

    async def receive(self, address, ticket, into, *, deadline_s):
        """The bulk client as the tier sees it."""
        if self.trouble == "hang":
            try:
                async with asyncio.timeout(deadline_s):
                    await asyncio.sleep(60)
            except TimeoutError:
                raise BulkError("deadline") from None
        if self.trouble:
            raise BulkError(self.trouble)
        await self.bulk.receive(address, ticket, into, deadline_s=deadline_s)


@pytest.fixture
async def pair(peer_bench, tokens):
    async with Pair(peer_bench, peer_bench.MemoryLender(tokens), Tickets(ttl_s=0.3)) as made:
        yield made
        await peer_bench.until(lambda: made.lender.out == 0)


async def test_bytes_come_by_bulk_when_it_is_offered(peer_bench, tokens, pair):
    for _ in range(3):
        wanted = peer_bench.ask(tokens, 1)
        got = await pair.tier.get(wanted, deadline_s=5)
        assert all(isinstance(answer, Hit) for answer in got)
        assert all(peer_bench.right(each) for each in wanted)
    await peer_bench.until(lambda: pair.lender.out == 0)
    assert pair.counts.fetches == {("bulk", "ok"): 3}
    assert pair.counts.read_bytes == {"bulk": 21 * peer_bench.BLOCK_BYTES}
    assert pair.bulk_server.sent_bytes >= 21 * peer_bench.BLOCK_BYTES
    assert pair.fetching.counts.lent_blocks == {"bulk": 21}


async def test_many_at_once_each_get_their_own(peer_bench, tokens, pair):
    prompts = [peer_bench.prompt(name, 5) for name in range(10, 22)]
    pair.lender.prompts += prompts
    batches = [peer_bench.ask(each) for each in prompts]
    answers = await asyncio.gather(*(pair.tier.get(each, deadline_s=10) for each in batches))
    assert all(isinstance(answer, Hit) for got in answers for answer in got)
    assert all(peer_bench.right(each) for batch in batches for each in batch)


@pytest.mark.parametrize("trouble", ["unreachable", "broken", "refused", "protocol", "deadline"])
async def test_after_a_bulk_failure_the_run_comes_by_grpc_and_bulk_is_left_alone_for_a_while(
    peer_bench, tokens, pair, trouble
):
    pair.trouble = trouble
    for _ in range(3):
        wanted = peer_bench.ask(tokens)
        assert all(isinstance(answer, Hit) for answer in await pair.tier.get(wanted, deadline_s=5))
        assert all(peer_bench.right(each) for each in wanted)
    assert pair.counts.fetches == {("bulk", trouble): 1, ("grpc", "ok"): 3}
    assert "bulk" in pair.tier.state()
    pair.now, pair.trouble = 1.5, ""
    assert all(isinstance(answer, Hit) for answer in await pair.tier.get(peer_bench.ask(tokens), deadline_s=5))
    assert pair.counts.fetches["bulk", "ok"] == 1
    assert pair.tier.state() == ""


async def test_a_bulk_channel_that_hangs_leaves_time_for_grpc(peer_bench, tokens, pair):
    pair.trouble = "hang"
    started = time.monotonic()
    got = await pair.tier.get(peer_bench.ask(tokens), deadline_s=1.0)
    assert all(isinstance(answer, Hit) for answer in got)
    assert 0.5 < time.monotonic() - started < 1.0
    assert pair.counts.fetches == {("bulk", "deadline"): 1, ("grpc", "ok"): 1}


async def test_a_bulk_server_that_is_gone_costs_nothing_but_the_way(peer_bench, tokens, pair):
    await pair.bulk_server.stop()
    wanted = peer_bench.ask(tokens)
    assert all(isinstance(answer, Hit) for answer in await pair.tier.get(wanted, deadline_s=5))
    assert all(peer_bench.right(each) for each in wanted)
    assert pair.counts.fetches["grpc", "ok"] == 1


async def test_a_ticket_that_expired_is_refused_and_the_run_comes_by_grpc(peer_bench, tokens, pair):
    real = pair.bulk.receive

    async def late(address, ticket, into, *, deadline_s):
        await asyncio.sleep(0.4)
        await real(address, ticket, into, deadline_s=deadline_s)

    pair.bulk.receive = late
    assert all(isinstance(answer, Hit) for answer in await pair.tier.get(peer_bench.ask(tokens), deadline_s=5))
    assert pair.counts.fetches == {("bulk", "refused"): 1, ("grpc", "ok"): 1}


async def test_damaged_bytes_are_found_whatever_way_they_came(peer_bench, tokens, pair):
    pair.lender.damage = {0, 7}
    got = await pair.tier.get(peer_bench.ask(tokens), deadline_s=5)
    assert [type(answer) for answer in got] == [Failed] + [Hit] * 6 + [Failed]
    assert pair.counts.fetches == {("bulk", "ok"): 1}


async def test_no_room_for_a_ticket_is_no_failure_of_the_channel(peer_bench, tokens):
    async with Pair(peer_bench, peer_bench.MemoryLender(tokens), Tickets(max_tickets=0)) as pair:
        for _ in range(2):
            got = await pair.tier.get(peer_bench.ask(tokens), deadline_s=5)
            assert all(isinstance(answer, Hit) for answer in got)
        assert pair.counts.fetches == {("grpc", "ok"): 2}
        assert pair.tier.state() == ""


async def test_a_cancelled_bulk_transfer_writes_no_more_and_its_loan_ends(peer_bench, tokens, pair):
    pair.trouble = "hang"
    task = asyncio.create_task(pair.tier.get(peer_bench.ask(tokens), deadline_s=20))
    await peer_bench.until(lambda: pair.lender.out == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await peer_bench.until(lambda: pair.lender.out == 0)
    assert pair.tier.in_flight_bytes == 0


async def test_close_gives_up_a_bulk_transfer(peer_bench, tokens, pair):
    pair.trouble = "hang"
    task = asyncio.create_task(pair.tier.get(peer_bench.ask(tokens), deadline_s=20))
    await peer_bench.until(lambda: pair.lender.out == 1)
    await asyncio.sleep(0.05)
    await asyncio.wait_for(pair.tier.close(), 1)
    assert await task == [Failed("io")] * 8


async def test_random_cancellations_and_deadlines_leave_nothing_lent_and_no_byte_late(peer_bench, tokens, pair):
    """Every buffer is wiped the moment its get has ended, and must stay so."""
    delays = [0.001 * n for n in range(24)]
    ended = []

    async def one(at: int, delay: float) -> None:
        wanted = peer_bench.ask(tokens)
        get = asyncio.create_task(pair.tier.get(wanted, deadline_s=delay if at % 2 else 5))
        if at % 2 == 0:
            await asyncio.sleep(delay)
            get.cancel()
        answers = (await asyncio.gather(get, return_exceptions=True))[0]
        if isinstance(answers, list):
            for answer in answers:
                if isinstance(answer, Failed) and answer.until is not None:
                    await answer.until.wait()
        for each in wanted:
            each.into[:] = 0
        ended.extend(wanted)

    for at, delay in enumerate(delays):
        pair.now += 120  # no breaker stands in the way
        await one(at, delay)
    await asyncio.sleep(0.1)
    assert not any(each.into.any() for each in ended)
    await peer_bench.until(lambda: pair.lender.out == 0)
    assert pair.tier.in_flight_bytes == 0
    assert pair.tickets.outstanding == 0


async def test_a_holder_cannot_send_this_node_to_another_host(pair, peer_bench, tokens) -> None:
    pair.fetching._bulk_address = "10.1.2.3:4"
    dialled = []
    receive, pair.receive = pair.receive, lambda address, *rest, **by: dialled.append(address) or receive(*rest, **by)
    answers = await pair.tier.get(peer_bench.ask(tokens), deadline_s=5)
    assert not dialled
    assert not any(isinstance(each, Hit) for each in answers)
    assert pair.counts.fetches["none", "protocol"] == 1


async def test_the_bulk_address_that_a_peer_has_told_to_all_counts(pair, peer_bench, tokens) -> None:
    pair.fetching._bulk_address = "10.1.2.3:4"
    pair.tier._bulk_address = pair.bulk_server.address
    wanted = peer_bench.ask(tokens)
    assert all(isinstance(each, Hit) for each in await pair.tier.get(wanted, deadline_s=5))
    assert all(peer_bench.right(each) for each in wanted)
    assert pair.counts.fetches["bulk", "ok"] == 1
