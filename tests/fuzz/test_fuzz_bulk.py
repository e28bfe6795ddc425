"""The bulk channel with arbitrary bytes and damaged handshakes, from either side: nothing leaks, good ones go on."""

import asyncio
import contextlib

import numpy as np
import pytest
from hypothesis import strategies as st
from kvterrace.kvstore.lending import Loan
from kvterrace.kvstore.peer import bulk_wire as wire
from kvterrace.kvstore.peer.bulk_client import BulkClient, BulkError
from kvterrace.kvstore.peer.bulk_server import BulkLimits, BulkServer
from kvterrace.kvstore.peer.tickets import Tickets

pytestmark = pytest.mark.unit

GOOD = "a good ticket"
LIMITS = BulkLimits(connections=8, threads=2, hello_s=0.2, idle_s=0.2)
DATA = np.arange(3 * 5000, dtype=np.uint32).view(np.uint8).reshape(3, -1)

pieces = st.lists(
    st.one_of(
        st.binary(max_size=100),
        st.just(GOOD),
        st.just(wire.pack_hello(bytes(16))),
        st.binary(min_size=16, max_size=16).map(wire.pack_hello),
        st.tuples(st.integers(0, wire.HELLO_BYTES - 1), st.integers(0, 255)),  # a good one with one byte changed
        st.integers(0, wire.HELLO_BYTES - 1),  # a good one cut short
    ),
    max_size=5,
)


class Bulk:
    """A server, what it lent, and a client that behaves."""

    def __init__(self) -> None:
        self.tickets = Tickets(ttl_s=0.5)
        self.server = BulkServer("127.0.0.1", 0, self.tickets, limits=LIMITS)
        self.client = BulkClient()
        self.lent = self.released = 0

    def issue(self) -> bytes:
        self.lent += 1
        ticket = self.tickets.issue(Loan(0, list(DATA), [0] * 3, [b""] * 3, self._back))
        assert ticket is not None, "loans leak"
        return ticket

    def _back(self) -> None:
        self.released += 1

    async def survive(self, case: tuple[list[object], bool]) -> None:
        said, reads = case
        host, port = self.server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(OSError):
            for piece in said:
                writer.write(self._bytes(piece))
                await writer.drain()
            if reads:
                writer.write_eof()
                async with asyncio.timeout(1.0):
                    await reader.read(100_000)
        writer.transport.abort()
        await self._settle(lambda: not self.server.connections and not self.tickets.serving)
        self.tickets.close()  # what was never shown
        assert self.released == self.lent
        assert self.tickets.total_bytes == 0

    def _bytes(self, piece: object) -> bytes:
        if isinstance(piece, bytes):
            return piece
        hello = bytearray(wire.pack_hello(self.issue()))
        if isinstance(piece, int):
            return bytes(hello[:piece])
        if isinstance(piece, tuple):
            hello[piece[0]] = piece[1]
        return bytes(hello)

    async def _settle(self, true) -> None:
        async with asyncio.timeout(5.0):
            while not true():  # noqa: ASYNC110  # of several things
                await asyncio.sleep(0.001)

    async def behaves(self) -> None:
        into = np.zeros_like(DATA)
        await self.client.receive(self.server.address, self.issue(), [row.data for row in into], deadline_s=5.0)
        assert np.array_equal(into, DATA)

    async def close(self) -> None:
        await self.client.close()
        await self.server.stop()
        self.tickets.close()
        assert self.released == self.lent


def test_whatever_is_sent_to_the_bulk_server_it_gives_back_what_was_lent(fuzz, runner) -> None:
    bulk = Bulk()
    runner.run(bulk.server.start())
    fuzz(lambda case: runner.run(bulk.survive(case)), st.tuples(pieces, st.booleans()), share=0.5)
    runner.run(bulk.behaves())
    runner.run(bulk.close())


answers = st.one_of(
    st.binary(max_size=60),
    st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1)).map(lambda pair: wire.pack_answer(*pair)),
    st.binary(max_size=300).map(lambda data: wire.pack_answer(wire.GRANTED, 100) + data),
    st.tuples(st.integers(0, wire.ANSWER_BYTES - 1), st.integers(0, 255)).map(
        lambda change: _changed(wire.pack_answer(wire.GRANTED, 100) + bytes(100), *change)
    ),
)


def _changed(data: bytes, at: int, to: int) -> bytes:
    return data[:at] + bytes([to]) + data[at + 1 :]


async def _answered(data: bytes) -> None:
    """A client of a server that answers so gets what it asked for or BulkError, and not a byte beside its memory."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readexactly(wire.HELLO_BYTES)
            writer.write(data)
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client, memory = BulkClient(threads=1), bytearray(120)
    try:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await client.receive(address, bytes(16), [memoryview(memory)[10:110]], deadline_s=2.0)
    except BulkError as error:
        trouble = error.reason
    else:
        trouble = ""
        assert wire.unpack_answer(data[: wire.ANSWER_BYTES]).length_bytes == 100
    finally:
        await client.close()
        server.close()
    assert trouble in ("", "broken", "protocol", "refused", "deadline")
    assert not any(memory[:10])
    assert not any(memory[110:])


def test_whatever_a_bulk_server_answers_its_client_takes_what_it_asked_for_or_nothing(fuzz, runner) -> None:
    fuzz(lambda data: runner.run(_answered(data)), answers, share=0.5)
