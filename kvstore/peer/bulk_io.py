"""Blocking transfers, on threads that do nothing else, and how the event loop ends them.

Why not the loop's own sock_recv_into and sock_sendall: they wake the loop for each piece that the kernel has ready
(measured on loopback: 160 times for 94 MB, at 0.6 times the speed and twice the processor time of this), compete with
all else that it does, and know no TLS. A thread makes one call that the kernel fills or drains whole, without the GIL.
It has no timeout of its own: shutting the socket down from the loop wakes it at once.

Socket buffers are left to the kernel, which lets them grow with the path. Setting them ends that, caps them at
net.core.rmem_max, by default a thirtieth of what they may grow to, and on loopback is slower the larger they are.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")
_MAX_VIEWS = 1024  # of one call (IOV_MAX)
_NO_LINGER = struct.pack("ii", 1, 0)


class Ended(ConnectionError):
    """The other side closed the connection where it should not."""


async def on_thread(threads: Executor, sock: socket.socket, work: Callable[[], _T]) -> _T:
    """What `work` answers or raises; it waits for `sock` alone. However this ends, `work` has ended too: when this is
    cancelled, the socket is shut down first, and of no use any more."""
    job = threads.submit(work)
    future = asyncio.wrap_future(job)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        if not job.cancel():
            cut(sock)
        while not future.done():  # as long as the thread needs to wake up
            with suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        if not future.cancelled():
            future.exception()  # seen: it is the shutdown
        raise
    return future.result()


async def readable(sock: socket.socket) -> None:
    """Wait until there is something to read, or the end."""
    if isinstance(sock, ssl.SSLSocket) and sock.pending():
        return
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(sock.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


def send_all(sock: socket.socket, views: Sequence[memoryview]) -> None:
    """Send all bytes of `views`, one after the other. Blocks. OSError: it cannot be."""
    if isinstance(sock, ssl.SSLSocket):
        for view in views:
            sock.sendall(view)
        return
    left = _behind(views, 0)
    while left:
        left = _behind(left, sock.sendmsg(left[:_MAX_VIEWS]))


def receive_all(sock: socket.socket, views: Sequence[memoryview]) -> None:
    """Fill `views`, one after the other. Blocks. OSError: it cannot be; Ended: too few bytes came."""
    if isinstance(sock, ssl.SSLSocket):
        for view in views:
            done_bytes = 0
            while done_bytes < view.nbytes:  # a TLS record at a time
                done_bytes += _some(sock.recv_into(view[done_bytes:]))
        return
    left = _behind(views, 0)
    while left:
        left = _behind(left, _some(sock.recvmsg_into(left[:_MAX_VIEWS], 0, socket.MSG_WAITALL)[0]))


def cut(sock: socket.socket) -> None:
    """Wake who waits for the socket, on whatever thread; nothing more goes through it."""
    with suppress(OSError):
        socket.socket.shutdown(
            sock, socket.SHUT_RDWR
        )  # past SSLSocket's own, which takes its state away from the thread


def abort(sock: socket.socket) -> None:
    """Close, and drop what the kernel still has to send. Nobody waits for the socket."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    sock.close()


def _some(got_bytes: int) -> int:
    if not got_bytes:
        raise Ended("the other side closed the connection")
    return got_bytes


def _behind(views: Sequence[memoryview], done_bytes: int) -> list[memoryview]:
    """What of `views` lies behind the first `done_bytes`."""
    for i, view in enumerate(views):
        if done_bytes < view.nbytes:
            return [view[done_bytes:], *views[i + 1 :]]
        done_bytes -= view.nbytes
    return []
