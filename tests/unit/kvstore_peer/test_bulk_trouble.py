"""The bulk channel when one side misbehaves, is slow, or gives up: it ends in time, and lets go of memory and loans."""

import asyncio
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvterrace.kvstore.peer import bulk_wire as wire
from kvterrace.kvstore.peer.bulk_client import BulkClient, BulkError
from kvterrace.kvstore.peer.bulk_io import on_thread, receive_all
from kvterrace.kvstore.peer.bulk_server import BulkLimits

from .test_bulk_channel import channel, until

pytestmark = pytest.mark.unit

LARGE = (8, 8 << 20)  # more than socket buffers hold


@asynccontextmanager
async def raw(address: str):
    """A connection that says what a test wants."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def answering(answer: bytes, then: str):
    """A server that answers a hello with `answer`, and then does what `then` says: "close", "reset", "wait", "pour"
    bytes without end, or "hang up later", at the next hello. Yields its address and the hellos that came."""
    hellos: list[bytes] = []
    tasks: set[asyncio.Task] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            hellos.append(await reader.readexactly(wire.HELLO_BYTES))
            writer.write(answer)
            await writer.drain()
            while then == "pour":
                writer.write(bytes([255]) * 65536)
                await writer.drain()
            if then == "wait":
                await asyncio.sleep(60)
            if then == "hang up later":
                hellos.append(await reader.readexactly(wire.HELLO_BYTES))
            if then == "reset":
                writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", hellos
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def client():
    it = BulkClient()
    try:
        yield it
    finally:
        await it.close()


async def reason(it: BulkClient, address: str, size_bytes: int = 1000, deadline_s: float = 5.0) -> str:
    with pytest.raises(BulkError) as trouble:
        await it.receive(address, bytes(16), [memoryview(bytearray(size_bytes))], deadline_s=deadline_s)
    return trouble.value.reason


GRANTED = wire.pack_answer(wire.GRANTED, 1000)


@pytest.mark.parametrize(
    ("answer", "then", "expected"),
    [
        (b"", "close", "broken"),
        (b"", "reset", "broken"),
        (b"", "wait", "deadline"),
        (GRANTED[:10], "close", "broken"),
        (GRANTED[:10], "wait", "deadline"),
        (GRANTED, "close", "broken"),
        (GRANTED, "wait", "deadline"),
        (GRANTED + bytes(999), "close", "broken"),
        (GRANTED + bytes(999), "reset", "broken"),
        (GRANTED + bytes(999), "wait", "deadline"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "wait", "protocol"),
        (wire.pack_answer(wire.WRONG_VERSION), "close", "protocol"),
        (wire.pack_answer(wire.GRANTED, 1 << 63), "pour", "protocol"),
        (wire.pack_answer(wire.REFUSED), "wait", "refused"),
    ],
)
async def test_whatever_a_server_does_a_receive_ends_with_a_reason(answer: bytes, then: str, expected: str) -> None:
    async with answering(answer, then) as (address, _), client() as it:
        assert await reason(it, address, deadline_s=0.2 if expected == "deadline" else 5.0) == expected
        assert it.idle(address) == (1 if expected == "refused" else 0)


async def test_a_deadline_in_the_past_is_a_deadline() -> None:
    async with answering(GRANTED + bytes(1000), "close") as (address, _), client() as it:
        assert await reason(it, address, deadline_s=-1.0) == "deadline"


async def test_a_connection_that_nobody_accepts_is_a_deadline() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = f"127.0.0.1:{full.getsockname()[1]}"
        async with client() as it:
            assert await reason(it, address, deadline_s=0.2) == "deadline"


async def test_bytes_that_nobody_asked_for_end_a_connection_before_its_next_use() -> None:
    async with answering(GRANTED + bytes(1001), "wait") as (address, hellos), client() as it:
        for uses in (1, 2):
            await it.receive(address, bytes(16), [memoryview(bytearray(1000))], deadline_s=5)
            await until(lambda: it.idle(address) == 1)
            assert len(hellos) == uses


@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
async def test_nothing_is_written_once_a_receive_has_ended(how: str) -> None:
    """The server keeps pouring; the memory is read over and over after the end."""
    size_bytes = 1 << 30
    into = np.zeros(size_bytes, np.uint8)
    async with answering(wire.pack_answer(wire.GRANTED, size_bytes), "pour") as (address, _), client() as it:
        deadline_s = 0.2 if how == "deadline" else 60.0
        task = asyncio.create_task(it.receive(address, bytes(16), [into.data], deadline_s=deadline_s))
        await until(lambda: into[0] == 255 or task.done())
        if how == "cancel":
            task.cancel()
        if how == "close":
            await it.close()
            came = np.count_nonzero(into)
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if how != "close":
            came = np.count_nonzero(into)
        assert came < size_bytes
        assert came or how == "deadline"  # which may come before the first byte on a busy machine
        await asyncio.sleep(0.1)
        assert np.count_nonzero(into) == came
        expected = {"cancel": "CancelledError", "deadline": "deadline", "close": "broken"}[how]
        assert expected == (ended.reason if isinstance(ended, BulkError) else type(ended).__name__)


async def test_a_thread_that_is_slow_to_wake_is_waited_for_however_often_one_cancels() -> None:
    ours, theirs = socket.socketpair()
    ended = []

    def work() -> None:
        try:
            receive_all(ours, [memoryview(bytearray(10))])
        finally:
            time.sleep(0.1)
            ended.append(True)

    with ours, theirs, ThreadPoolExecutor(1) as threads:
        task = asyncio.create_task(on_thread(threads, ours, work))
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]


async def test_a_receive_that_waits_for_a_thread_can_be_cancelled() -> None:
    async with answering(GRANTED, "wait") as (address, hellos):
        it = BulkClient(threads=1)
        first = asyncio.create_task(reason(it, address, deadline_s=1.0))
        await until(lambda: len(hellos) == 1)
        assert await reason(it, address, deadline_s=0.05) == "deadline"
        assert await first == "deadline"
        await it.close()


async def test_a_cancelled_receive_closes_its_own_connection_only() -> None:
    async with channel() as both, answering(GRANTED, "wait") as (address, hellos):
        stuck = asyncio.create_task(reason(both.client, address, deadline_s=60))
        await until(lambda: len(hellos) == 1)
        ticket, data = both.issue(*LARGE)
        other = asyncio.create_task(both.receive(ticket, data))
        stuck.cancel()
        assert np.array_equal(await other, data)


async def test_a_client_that_gives_up_in_the_middle_frees_the_loan() -> None:
    async with channel() as both:
        ticket, into, views = both.issue_long()
        task = asyncio.create_task(both.client.receive(both.server.address, ticket, views, deadline_s=60))
        await until(into.any)
        task.cancel()
        await until(lambda: both.released == 1 and both.server.connections == 0)
        assert (both.server.broken, both.server.transfers, task.cancelled()) == (1, 0, True)


@pytest.mark.parametrize("how", ["stalls", "leaves", "resets"])
async def test_a_client_that_stops_reading_holds_a_loan_no_longer_than_its_deadline(how: str) -> None:
    async with channel(BulkLimits(hello_s=0.5, floor_bytes_s=1e9)) as both:
        ticket, _ = both.issue(*LARGE)
        async with raw(both.server.address) as (_, writer):
            writer.transport.pause_reading()
            writer.write(wire.pack_hello(ticket))
            await until(lambda: both.tickets.serving == 1)
            if how == "leaves":
                writer.close()
            if how == "resets":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            await until(lambda: both.released == 1 and both.server.connections == 0)


async def test_stopping_the_server_breaks_transfers_off_and_frees_their_loans() -> None:
    async with channel() as both:
        tickets = [both.issue(*LARGE)[0] for _ in range(3)]
        async with raw(both.server.address) as (_, slow), raw(both.server.address) as (_, other):
            for writer, ticket in ((slow, tickets[0]), (other, tickets[1])):
                writer.transport.pause_reading()
                writer.write(wire.pack_hello(ticket))
            await until(lambda: both.tickets.serving == 2)
            await both.server.stop()
            assert both.released == 2


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: kv.local\r\n\r\n",
        bytes(32),
        wire.MAGIC + struct.pack("<II", 1, 1) + bytes(16),
    ],
)
async def test_a_malformed_hello_is_hung_up_on_without_an_answer(hello: bytes) -> None:
    async with channel() as both, raw(both.server.address) as (reader, writer):
        writer.write(hello)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        await until(lambda: both.server.connections == 0)


async def test_another_version_is_told_ours_and_hung_up_on() -> None:
    async with channel() as both, raw(both.server.address) as (reader, writer):
        writer.write(wire.MAGIC + struct.pack("<II", 2, 0) + bytes(16))
        assert await asyncio.wait_for(reader.read(), 5) == wire.pack_answer(wire.WRONG_VERSION)


@pytest.mark.parametrize("said", [b"", b"KVT", wire.pack_hello(bytes(16))[:31]])
async def test_a_hello_that_does_not_come_whole_ends_the_connection(said: bytes) -> None:
    async with channel(BulkLimits(hello_s=0.05)) as both, raw(both.server.address) as (reader, writer):
        writer.write(said)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        await until(lambda: both.server.connections == 0)


async def test_a_hello_in_pieces_is_a_hello() -> None:
    async with channel() as both, raw(both.server.address) as (reader, writer):
        ticket, data = both.issue(1, 1000)
        for byte in wire.pack_hello(ticket):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert await reader.readexactly(1024) == wire.pack_answer(wire.GRANTED, 1000) + data.tobytes()


async def test_hellos_may_come_before_the_answers() -> None:
    async with channel() as both, raw(both.server.address) as (reader, writer):
        (first, one), (second, two) = both.issue(1, 1000), both.issue(1, 1000, seed=1)
        writer.write(wire.pack_hello(first) + wire.pack_hello(second))
        answer = wire.pack_answer(wire.GRANTED, 1000)
        assert await reader.readexactly(2048) == answer + one.tobytes() + answer + two.tobytes()


async def test_a_cut_in_the_middle_is_broken_and_the_next_receive_connects_anew() -> None:
    async with channel() as both:
        ticket, into, views = both.issue_long()
        task = asyncio.create_task(both.client.receive(both.server.address, ticket, views, deadline_s=60))
        await until(into.any)
        for each in both.server._connections:  # as a fault of the network would
            each.cancel()
        with pytest.raises(BulkError) as trouble:
            await task
        assert trouble.value.reason == "broken"
        await until(lambda: both.released == 1)
        ticket, data = both.issue()
        assert np.array_equal(await both.receive(ticket, data), data)


async def test_an_idle_connection_that_breaks_before_an_answer_is_replaced_once() -> None:
    """The server ends each connection at its second hello, as one that gives up idle connections may at any moment."""
    async with answering(GRANTED + bytes(1000), "hang up later") as (address, hellos), client() as it:
        for came in (1, 3, 5):
            await it.receive(address, bytes(16), [memoryview(bytearray(1000))], deadline_s=5)
            assert len(hellos) == came


async def test_no_thread_is_left_behind() -> None:
    async with channel() as both:
        issued = [both.issue(seed=seed) for seed in range(4)]
        await asyncio.gather(*(both.receive(ticket, data) for ticket, data in issued))
    await until(lambda: not any(thread.name.startswith("kvterrace-bulk") for thread in threading.enumerate()))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=80) | st.binary(max_size=24).map(lambda rest: wire.MAGIC + rest), max_size=4))
def test_no_bytes_from_a_client_harm_the_server(said: list[bytes]) -> None:
    async def play() -> None:
        async with channel() as both:
            async with raw(both.server.address) as (_, writer):
                for each in said:
                    writer.write(each)
                    await asyncio.sleep(0)
                writer.close()
            ticket, data = both.issue(1, 100)
            assert np.array_equal(await both.receive(ticket, data), data)

    asyncio.run(play())


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=60)
    | st.builds(
        lambda version, status, length, rest: wire.MAGIC + struct.pack("<IIQ", version, status, length) + rest,
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from([0, 10, 11, 1 << 63]),
        st.binary(max_size=20),
    )
)
def test_no_bytes_from_a_server_harm_the_client(answer: bytes) -> None:
    """It gets all that it asked for, or an error; neither touches memory beside its own."""

    async def play() -> None:
        memory = bytearray(30)
        async with answering(answer, "close") as (address, _), client() as it:
            ended = "granted"
            try:
                await it.receive(address, bytes(16), [memoryview(memory)[10:20]], deadline_s=5)
            except BulkError as error:
                ended = error.reason
        assert ended in {"granted", "broken", "protocol", "refused"}
        assert memory[:10] + memory[20:] == bytes(20)
        if ended == "granted":
            assert answer[:24] == wire.pack_answer(wire.GRANTED, 10)
            assert memory[10:20] == answer[24:34]

    asyncio.run(play())
