"""The bulk channel between a real server and a real client: the right bytes, once, over few connections."""

import asyncio
import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager

import numpy as np
import pytest
from kvterrace.kvstore.lending import Loan
from kvterrace.kvstore.peer import bulk_wire as wire
from kvterrace.kvstore.peer.bulk_client import BulkClient, BulkError
from kvterrace.kvstore.peer.bulk_server import BulkLimits, BulkServer
from kvterrace.kvstore.peer.tickets import Tickets

pytestmark = pytest.mark.unit

BLOCK_BYTES = 100_003


class Channel:
    """Both ends, and what was lent."""

    def __init__(self, tickets: Tickets, server: BulkServer, client: BulkClient) -> None:
        self.tickets, self.server, self.client = tickets, server, client
        self.lent = self.released = 0

    def issue(self, blocks: int = 3, block_bytes: int = BLOCK_BYTES, seed: int = 0):
        """A ticket and the bytes it is for."""
        data = np.random.default_rng(seed).integers(0, 256, (blocks, block_bytes), dtype=np.uint8)
        return self._lend(list(data)), data

    def issue_long(self):
        """A ticket for a gigabyte, a second or so, and where to put it; it is the same block over and over."""
        times = 128
        into = np.zeros(8 << 20, np.uint8)
        return self._lend([np.full(8 << 20, 255, np.uint8)] * times), into, [into.data] * times

    def _lend(self, blocks):
        n = len(blocks)
        self.lent += 1
        return self.tickets.issue(Loan(0, blocks, [0] * n, [b""] * n, self._release))

    def _release(self) -> None:
        self.released += 1

    async def receive(self, ticket: bytes, like: np.ndarray, deadline_s: float = 5.0) -> np.ndarray:
        into = np.zeros_like(like)
        await self.client.receive(self.server.address, ticket, [row.data for row in into], deadline_s=deadline_s)
        return into


@asynccontextmanager
async def channel(limits=BulkLimits(), ttl_s=5.0, server_ssl=None, client_ssl=None, **options):  # noqa: B008
    """A Channel; once its ends are closed, all that was lent has been released."""
    tickets = Tickets(ttl_s=ttl_s)
    server = BulkServer("127.0.0.1", 0, tickets, server_ssl, limits)
    client = BulkClient(client_ssl, **options)
    await server.start()
    both = Channel(tickets, server, client)
    try:
        yield both
    finally:
        await client.close()
        await server.stop()
        tickets.close()
        assert both.released == both.lent
        assert tickets.outstanding == 0


async def until(true) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - of many things
            await asyncio.sleep(0.005)


async def test_blocks_arrive_where_they_were_asked_for() -> None:
    async with channel() as both:
        ticket, data = both.issue()
        assert np.array_equal(await both.receive(ticket, data), data)
        await until(lambda: both.released == 1)
        assert (both.server.transfers, both.server.sent_bytes) == (1, data.nbytes)


@pytest.mark.parametrize("shape", [(0, 1), (1, 1), (1, 8 << 20), (2500, 33)])
async def test_of_any_shape(shape: tuple[int, int]) -> None:
    async with channel() as both:
        ticket, data = both.issue(*shape)
        assert np.array_equal(await both.receive(ticket, data), data)


async def test_the_two_sides_need_not_cut_the_bytes_alike() -> None:
    async with channel() as both:
        ticket, data = both.issue(4, 1000)
        into = np.zeros((2, 2000), np.uint8)
        await both.client.receive(both.server.address, ticket, [row.data for row in into], deadline_s=5)
        assert into.tobytes() == data.tobytes()


async def test_many_tickets_go_over_one_connection() -> None:
    async with channel() as both:
        for seed in range(20):
            ticket, data = both.issue(seed=seed)
            assert np.array_equal(await both.receive(ticket, data), data)
        assert (both.server.connections, both.client.idle(both.server.address)) == (1, 1)


async def test_a_refused_ticket_leaves_the_connection_good() -> None:
    async with channel() as both:
        ticket, data = both.issue()
        await both.receive(ticket, data)
        for bad in (ticket, bytes(16)):  # used, and never issued
            with pytest.raises(BulkError) as trouble:
                await both.receive(bad, data)
            assert trouble.value.reason == "refused"
        ticket, data = both.issue(seed=1)
        assert np.array_equal(await both.receive(ticket, data), data)
        assert (both.server.connections, both.server.refused) == (1, 2)


async def test_an_expired_ticket_is_refused() -> None:
    async with channel(ttl_s=0.02) as both:
        ticket, data = both.issue()
        await asyncio.sleep(0.05)
        assert both.released == 1
        with pytest.raises(BulkError) as trouble:
            await both.receive(ticket, data)
        assert trouble.value.reason == "refused"


async def test_of_two_who_show_one_ticket_one_is_served() -> None:
    async with channel() as both:
        ticket, data = both.issue()
        ends = await asyncio.gather(both.receive(ticket, data), both.receive(ticket, data), return_exceptions=True)
        served = [each for each in ends if isinstance(each, np.ndarray)]
        refused = [each.reason for each in ends if isinstance(each, BulkError)]
        assert (len(served), refused) == (1, ["refused"])
        assert np.array_equal(served[0], data)


async def test_sixty_four_at_once_and_few_connections_stay() -> None:
    async with channel(max_idle=3) as both:
        issued = [both.issue(seed=seed) for seed in range(64)]
        came = await asyncio.gather(*(both.receive(ticket, data) for ticket, data in issued))
        assert all(np.array_equal(into, data) for into, (_, data) in zip(came, issued, strict=True))
        assert both.client.idle(both.server.address) == 3
        await until(lambda: both.server.connections == 3)


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with channel(idle_s=0.05) as both:
        ticket, data = both.issue()
        await both.receive(ticket, data)
        assert both.client.idle(both.server.address) == 1
        await until(lambda: both.client.idle(both.server.address) == 0 and both.server.connections == 0)


async def test_a_connection_that_the_server_closed_meanwhile_costs_nothing() -> None:
    async with channel(BulkLimits(idle_s=0.05)) as both:
        ticket, data = both.issue()
        await both.receive(ticket, data)
        await until(lambda: both.server.connections == 0)
        ticket, data = both.issue(seed=1)
        assert np.array_equal(await both.receive(ticket, data), data)


async def test_another_length_than_asked_for_is_a_protocol_error_and_writes_nothing() -> None:
    async with channel() as both:
        for rows in (2, 4):
            ticket, _ = both.issue(3)
            into = np.zeros((rows, BLOCK_BYTES), np.uint8)
            with pytest.raises(BulkError, match="bytes are offered") as trouble:
                await both.client.receive(both.server.address, ticket, [row.data for row in into], deadline_s=5)
            assert trouble.value.reason == "protocol"
            assert not into.any()


async def test_a_ticket_of_another_length_is_a_protocol_error() -> None:
    async with channel() as both:
        with pytest.raises(BulkError, match="ticket of 3 bytes") as trouble:
            await both.client.receive(both.server.address, b"abc", [], deadline_s=5)
        assert trouble.value.reason == "protocol"


async def test_read_only_memory_is_a_mistake_of_the_caller() -> None:
    async with channel() as both:
        with pytest.raises(ValueError, match="read-only"):
            await both.client.receive(both.server.address, bytes(16), [memoryview(b"abc")], deadline_s=5)


async def test_connections_beyond_the_limit_are_hung_up_on() -> None:
    async with channel(BulkLimits(connections=1)) as both:
        ticket, data = both.issue()
        await both.receive(ticket, data)
        other = BulkClient()
        with pytest.raises(BulkError) as trouble:
            await other.receive(both.server.address, bytes(16), [], deadline_s=5)
        await other.close()
        assert (trouble.value.reason, both.server.turned_away) == ("broken", 1)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nowhere",
        "127.0.0.1:",
        ":70",
        "127.0.0.1:99999",
        "127.0.0.1:1",
        "a\0b:1",
        "[::1:1",
        "." * 300 + ":1",
        "127.0.0.1:" + "9" * 5000,
    ],
)
async def test_an_address_that_leads_nowhere_is_unreachable(address: str) -> None:
    client = BulkClient()
    with pytest.raises(BulkError) as trouble:
        await client.receive(address, bytes(16), [], deadline_s=5)
    assert trouble.value.reason == "unreachable"
    await client.close()


async def test_a_port_that_is_taken_stops_the_start() -> None:
    async with channel() as both:
        second = BulkServer("127.0.0.1", int(both.server.address.rpartition(":")[2]), both.tickets)
        with pytest.raises(OSError, match="in use"):
            await second.start()
        await second.stop()


async def test_ipv6_addresses_are_in_brackets() -> None:
    tickets = Tickets()
    server, client = BulkServer("::1", 0, tickets), BulkClient()
    try:
        await server.start()
    except OSError:
        pytest.skip("no IPv6 here")
    assert server.address.startswith("[::1]:")
    with pytest.raises(BulkError, match="refused"):
        await client.receive(server.address, bytes(16), [], deadline_s=5)
    await client.close()
    await server.stop()


async def test_after_close_nothing_is_received_and_closing_twice_is_harmless() -> None:
    async with channel() as both:
        ticket, data = both.issue()
        await both.client.close()
        with pytest.raises(BulkError) as trouble:
            await both.receive(ticket, data)
        assert trouble.value.reason == "unreachable"
        await both.server.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days"]
    subjects = ["1", "-subj", "/CN=kv", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run([*made, *subjects, *files], check=True, capture_output=True)
    return folder / "crt", folder / "key"


@pytest.fixture
def contexts(certificate):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*certificate)
    return server, ssl.create_default_context(cafile=str(certificate[0]))


@pytest.mark.parametrize("address", [".x:1", "a\0b:1", "é" * 100 + ":1"])
async def test_an_address_that_tls_cannot_name_is_unreachable(contexts, address: str) -> None:
    client = BulkClient(contexts[1])
    with pytest.raises(BulkError) as trouble:
        await client.receive(address, bytes(16), [], deadline_s=5)
    assert trouble.value.reason == "unreachable"
    await client.close()


async def test_over_tls(contexts) -> None:
    async with channel(server_ssl=contexts[0], client_ssl=contexts[1]) as both:
        for seed in range(3):
            ticket, data = both.issue(seed=seed, block_bytes=1 << 20)
            assert np.array_equal(await both.receive(ticket, data), data)
            with pytest.raises(BulkError, match="refused"):
                await both.receive(ticket, data)
        assert both.server.connections == 1


async def test_a_server_that_cannot_be_trusted_is_unreachable(contexts) -> None:
    async with channel(server_ssl=contexts[0], client_ssl=ssl.create_default_context()) as both:
        ticket, data = both.issue()
        with pytest.raises(BulkError, match="certificate") as trouble:
            await both.receive(ticket, data)
        assert trouble.value.reason == "unreachable"


async def test_a_plain_client_of_a_tls_server_gets_nothing(contexts) -> None:
    async with channel(server_ssl=contexts[0]) as both:
        ticket, data = both.issue()
        with pytest.raises(BulkError) as trouble:
            await both.receive(ticket, data)
        assert trouble.value.reason in {"protocol", "broken"}


async def test_a_tls_client_of_a_plain_server_is_turned_away(contexts) -> None:
    async with channel(BulkLimits(hello_s=0.2), client_ssl=contexts[1]) as both:
        ticket, data = both.issue()
        with pytest.raises(BulkError) as trouble:
            await both.receive(ticket, data)
        assert trouble.value.reason == "unreachable"


async def test_a_deadline_ends_a_tls_transfer_that_waits(contexts) -> None:
    """The client has read a part of it, and waits for the rest, when its time is up."""
    async with channel(server_ssl=contexts[0], client_ssl=contexts[1]) as both:
        data = bytes(1 << 20)

        async def half(_, writer) -> None:
            writer.write(wire.pack_answer(wire.GRANTED, 2 * len(data)) + data)
            await writer.drain()
            await asyncio.sleep(1)
            writer.transport.abort()

        slow = await asyncio.start_server(half, "127.0.0.1", 0, ssl=contexts[0])
        address = f"127.0.0.1:{slow.sockets[0].getsockname()[1]}"
        with pytest.raises(BulkError) as trouble:
            await both.client.receive(address, bytes(16), [memoryview(bytearray(2 * len(data)))], deadline_s=0.3)
        assert trouble.value.reason == "deadline"
        slow.close()


async def test_a_tls_transfer_given_up_in_the_middle_writes_no_more_and_frees_the_loan(contexts) -> None:
    async with channel(server_ssl=contexts[0], client_ssl=contexts[1]) as both:
        ticket, into, views = both.issue_long()
        task = asyncio.create_task(both.client.receive(both.server.address, ticket, views, deadline_s=60))
        await until(into.any)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        into[:] = 0
        await until(lambda: both.released == 1 and both.server.connections == 0)
        assert not into.any()


async def test_a_tls_client_that_stops_reading_is_cut_off_when_its_time_is_up(contexts) -> None:
    async with channel(BulkLimits(hello_s=0.5, floor_bytes_s=1e12), server_ssl=contexts[0]) as both:
        ticket, _, _ = both.issue_long()
        host, port = both.server.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=contexts[1])
        writer.write(wire.pack_hello(ticket))
        await until(lambda: both.tickets.serving == 1)
        writer.transport.pause_reading()
        await until(lambda: both.released == 1 and both.server.broken == 1)
        writer.transport.abort()
        await asyncio.sleep(0)
