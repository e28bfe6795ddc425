"""BulkClient: fetches blocks over the bulk channel, straight into the caller's memory.

Connections are kept for a while after use, a few for each server, since a new one begins slowly. A transfer that fails
closes its connection only. Used from one event loop.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from .bulk_io import abort, cut, on_thread, receive_all, send_all
from .bulk_wire import ANSWER_BYTES, REFUSED, WireError, pack_hello, unpack_answer
from .tickets import TICKET_BYTES

log = logging.getLogger(__name__)


class BulkError(Exception):
    """No blocks came, or not all. reason: "deadline"; "refused" (the ticket is not good, or was used); "broken" (the
    connection ended); "unreachable"; "protocol" (the other side speaks something else, or of other blocks)."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason


class _NoAnswer(BulkError):
    """The connection ended before an answer came: had it been idle, the server may never have seen the ticket."""

    def __init__(self, message: str) -> None:
        super().__init__("broken", message)


@dataclass(frozen=True, slots=True)
class _Idle:
    sock: socket.socket
    closing: asyncio.TimerHandle


class BulkClient:
    """ssl: None = plain TCP; a function is asked for each new connection. max_idle: connections kept for each
    server; idle_s: how long. threads: transfers at a time; others wait."""

    def __init__(
        self,
        ssl: ssl.SSLContext | Callable[[], ssl.SSLContext | None] | None = None,
        *,
        max_idle: int = 4,
        idle_s: float = 30.0,
        threads: int = 32,
    ) -> None:
        self._ssl = ssl
        self._max_idle = max_idle
        self._idle_s = idle_s
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="kvterrace-bulk-receive")
        self._idle: dict[str, list[_Idle]] = {}
        self._busy: dict[socket.socket, asyncio.Future[None]] = {}
        self._closed = False

    async def receive(self, address: str, ticket: bytes, into: Sequence[memoryview], *, deadline_s: float) -> None:
        """Fill `into`, writable and contiguous, with what the ticket is for, from the server at HOST:PORT. BulkError
        when that is not done within `deadline_s`, or cannot be; `into` is then undefined. Nothing writes to it any
        more once this has ended, however it did."""
        views = [view.cast("B") for view in into]
        if any(view.readonly for view in views):
            raise ValueError("the memory to receive into is read-only")
        if len(ticket) != TICKET_BYTES:
            raise BulkError("protocol", f"a ticket of {len(ticket)} bytes")
        if self._closed:
            raise BulkError("unreachable", "the bulk client is closed")
        try:
            async with asyncio.timeout(max(0.0, deadline_s)):
                await self._receive(address, pack_hello(ticket), views)
        except TimeoutError:
            raise BulkError("deadline", f"{address} took longer than {deadline_s:.3g} s") from None

    async def close(self) -> None:
        """Close all connections; what is being received breaks, and nothing writes to its memory when this returns.
        Closing twice is harmless."""
        self._closed = True
        for kept in self._idle.values():
            for idle in kept:
                idle.closing.cancel()
                idle.sock.close()
        self._idle.clear()
        for sock in self._busy:
            cut(sock)
        if self._busy:
            await asyncio.wait(list(self._busy.values()))
        self._threads.shutdown(wait=False)

    def idle(self, address: str) -> int:
        """Connections kept for a server."""
        return len(self._idle.get(address, ()))

    async def _receive(self, address: str, hello: bytes, views: list[memoryview]) -> None:
        sock = self._reuse(address)
        if sock is not None:
            try:
                await self._exchange(address, sock, hello, views)
                return
            except _NoAnswer as error:
                log.debug("an idle bulk connection to %s was of no use: %s", address, error)
        await self._exchange(address, await self._connect(address), hello, views)

    async def _exchange(self, address: str, sock: socket.socket, hello: bytes, views: list[memoryview]) -> None:
        good = False
        try:
            with self._used(sock), _named(address):
                granted = await on_thread(self._threads, sock, partial(_fill, sock, hello, views))
            good = True
        finally:
            if good and not self._closed:
                self._keep(address, sock)
            else:
                abort(sock)
        if not granted:
            raise BulkError("refused", f"{address} does not know the ticket")

    @contextmanager
    def _used(self, sock: socket.socket) -> Generator[None]:
        if self._closed:
            raise BulkError("unreachable", "the bulk client is closed")
        self._busy[sock] = ended = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._busy[sock]
            ended.set_result(None)

    async def _connect(self, address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal():
            raise BulkError("unreachable", f"{address!r} is not HOST:PORT")
        try:
            sock = await _connected(host, int(port))
            context = self._ssl() if callable(self._ssl) else self._ssl
            if context is not None:
                sock = await self._secured(sock, host, context)
        except (OSError, OverflowError, ValueError) as error:  # the address is the other side's word
            raise BulkError("unreachable", f"{address}: {error}") from error
        return sock

    async def _secured(self, sock: socket.socket, host: str, context: ssl.SSLContext) -> socket.socket:
        try:
            sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
            with self._used(sock):
                await on_thread(self._threads, sock, sock.do_handshake)
        except BaseException:
            abort(sock)
            raise
        return sock

    def _reuse(self, address: str) -> socket.socket | None:
        """The one used last, of those that the server has not closed."""
        kept = self._idle.get(address, [])
        while kept:
            idle = kept.pop()
            idle.closing.cancel()
            if not kept:
                del self._idle[address]
            if _quiet(idle.sock):
                return idle.sock
            idle.sock.close()
        return None

    def _keep(self, address: str, sock: socket.socket) -> None:
        kept = self._idle.setdefault(address, [])
        if len(kept) >= self._max_idle:
            sock.close()
            return
        closing = asyncio.get_running_loop().call_later(self._idle_s, self._drop, address, sock)
        kept.append(_Idle(sock, closing))

    def _drop(self, address: str, sock: socket.socket) -> None:
        kept = [idle for idle in self._idle.pop(address, []) if idle.sock is not sock]
        if kept:
            self._idle[address] = kept
        sock.close()


def _fill(sock: socket.socket, hello: bytes, views: list[memoryview]) -> bool:
    """On a thread: show the ticket, take the blocks. False: refused. BulkError, WireError, OSError."""
    answer_bytes = bytearray(ANSWER_BYTES)
    try:
        send_all(sock, [memoryview(hello)])
        receive_all(sock, [memoryview(answer_bytes)])
    except OSError as error:
        raise _NoAnswer(str(error)) from error
    answer = unpack_answer(bytes(answer_bytes))
    if answer.status == REFUSED:
        return False
    wanted_bytes = sum(view.nbytes for view in views)
    if answer.length_bytes != wanted_bytes:
        raise WireError(f"{answer.length_bytes} bytes are offered, {wanted_bytes} were asked for")
    receive_all(sock, views)
    return True


@contextmanager
def _named(address: str) -> Generator[None]:
    """Trouble on a connection, by its reason."""
    try:
        yield
    except WireError as error:
        raise BulkError("protocol", f"{address}: {error}") from error
    except OSError as error:
        raise BulkError("broken", f"{address}: {error}") from error


async def _connected(host: str, port: int) -> socket.socket:
    """A blocking socket. OSError: of the last address tried."""
    loop = asyncio.get_running_loop()
    trouble = OSError(f"{host} has no address")
    for family, kind, protocol, _, where in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, where)
            sock.setblocking(True)
            return sock
        except OSError as error:
            sock.close()
            trouble = error
        except BaseException:
            sock.close()
            raise
    raise trouble


def _quiet(sock: socket.socket) -> bool:
    """Whether nothing came on an idle connection: neither its end nor what nobody asked for."""
    try:
        socket.socket.recv(sock, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
