"""BulkServer: sends what was lent to whoever shows the ticket for it.

A connection serves one ticket after the other. Between them it costs no thread; within, one, for as long as the
transfer takes, which has a deadline. The loan is released once the thread has let go of it, however that came. Used
from one event loop.
"""

import asyncio
import logging
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from .bulk_io import abort, on_thread, readable, receive_all, send_all
from .bulk_wire import (
    GRANTED,
    HELLO_BYTES,
    REFUSED,
    VERSION,
    WRONG_VERSION,
    Hello,
    WireError,
    pack_answer,
    unpack_hello,
)
from .tickets import Tickets

log = logging.getLogger(__name__)

_ACCEPT_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class BulkLimits:
    """connections: beyond them, who connects is hung up on. threads: transfers at a time; others wait. hello_s: for a
    handshake, for the first hello, or for one to come whole; idle_s: between tickets. A transfer may take hello_s, and
    as long as its bytes take at floor_bytes_s."""

    connections: int = 256
    threads: int = 32
    hello_s: float = 5.0
    idle_s: float = 60.0
    floor_bytes_s: float = 10e6


class BulkServer:
    """host, port: where it listens; port 0 = any. ssl: None = plain TCP."""

    def __init__(
        self,
        host: str,
        port: int,
        tickets: Tickets,
        ssl: ssl.SSLContext | None = None,
        limits: BulkLimits = BulkLimits(),
    ) -> None:
        self._host = host
        self._port = port
        self._tickets = tickets
        self._ssl = ssl
        self._limits = limits
        self._threads = ThreadPoolExecutor(limits.threads, thread_name_prefix="kvterrace-bulk-send")
        self._address = ""
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.sent_bytes = 0
        self.transfers = 0
        self.refused = 0  # tickets that were not good
        self.broken = 0  # transfers that did not end
        self.turned_away = 0  # connections above the limit

    @property
    def address(self) -> str:
        """HOST:PORT that it listens on, once started."""
        if not self._address:
            raise RuntimeError("the bulk server is not started")
        return self._address

    @property
    def connections(self) -> int:
        """Open now."""
        return len(self._connections)

    async def start(self) -> None:
        """OSError: it cannot listen there."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self._host or None, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setblocking(False)
            listener.bind(where)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
        host, port = listener.getsockname()[:2]
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))

    async def stop(self) -> None:
        """Break off what is under way; loans are released when this returns. Stopping twice is harmless."""
        tasks = [*self._connections, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._accepting = None
        if self._listener is not None:
            self._listener.close()
        self._threads.shutdown(wait=False)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, peer = await loop.sock_accept(listener)
            except OSError as error:  # no descriptors left, or the connection is gone already
                log.warning("a bulk connection could not be accepted: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._connections) >= self._limits.connections:
                self.turned_away += 1
                sock.close()
                continue
            task = asyncio.create_task(self._connection(sock, str(peer[0])))
            self._connections.add(task)
            task.add_done_callback(partial(self._ended, sock))

    def _ended(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        sock.close()  # a task that was stopped before it began has not

    async def _connection(self, sock: socket.socket, peer: str) -> None:
        try:
            sock.setblocking(True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ssl is not None:
                sock = self._ssl.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
                async with asyncio.timeout(self._limits.hello_s):
                    await on_thread(self._threads, sock, sock.do_handshake)
            hello = await self._hello(sock, self._limits.hello_s)
            while await self._answer(sock, hello):
                hello = await self._hello(sock, self._limits.idle_s)
            sock.close()  # in order, so that the last answer arrives
        except (OSError, WireError) as error:  # a deadline is an OSError too
            log.debug("the bulk connection of %s ends: %s", peer, error or type(error).__name__)
        finally:
            abort(sock)

    async def _hello(self, sock: socket.socket, wait_s: float) -> Hello:
        async with asyncio.timeout(wait_s):
            await readable(sock)
        data = bytearray(HELLO_BYTES)
        async with asyncio.timeout(self._limits.hello_s):
            await on_thread(self._threads, sock, partial(receive_all, sock, [memoryview(data)]))
        return unpack_hello(bytes(data))

    async def _answer(self, sock: socket.socket, hello: Hello) -> bool:
        """Whether the connection goes on."""
        if hello.version != VERSION:
            await self._send(sock, [memoryview(pack_answer(WRONG_VERSION))], self._limits.hello_s)
            return False
        grant = self._tickets.take(hello.ticket)
        if grant is None:
            self.refused += 1
            await self._send(sock, [memoryview(pack_answer(REFUSED))], self._limits.hello_s)
            return True
        sent = False
        try:
            views = [memoryview(pack_answer(GRANTED, grant.size_bytes)), *(each.data for each in grant.loan.blocks)]
            await self._send(sock, views, self._limits.hello_s + grant.size_bytes / self._limits.floor_bytes_s)
            sent = True
        finally:
            grant.release()
            self.transfers += sent
            self.broken += not sent
        self.sent_bytes += grant.size_bytes
        return True

    async def _send(self, sock: socket.socket, views: list[memoryview], deadline_s: float) -> None:
        async with asyncio.timeout(deadline_s):
            await on_thread(self._threads, sock, partial(send_all, sock, views))
