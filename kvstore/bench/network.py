"""Loopback TCP: blocks as the bulk channel between nodes sends them, beside one plain buffer of the same size."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..peer.bulk_io import receive_all, send_all
from .memory import pages
from .row import GB, Row, take_turns

BLOCK_BYTES, BLOCKS = 1 << 20, 64
PATIENCE_S = 10.0


def measure_network(budget_s: float) -> Row:
    """This machine's own stack; what lies between two hosts is not in it."""
    source, target = pages(BLOCKS * BLOCK_BYTES), pages(BLOCKS * BLOCK_BYTES, None)
    cuts = range(0, len(source), BLOCK_BYTES)
    out = [source.data[at : at + BLOCK_BYTES] for at in cuts]
    into = [target.data[at : at + BLOCK_BYTES] for at in cuts]
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        listener.settimeout(PATIENCE_S)
        ours = socket.create_connection(listener.getsockname(), PATIENCE_S)
        theirs, _ = listener.accept()
        with ours, theirs:
            for sock in (ours, theirs):
                sock.settimeout(None)
            bulk = _both(thread, lambda: send_all(ours, out), lambda: receive_all(theirs, into))
            plain = _both(thread, lambda: ours.sendall(source.data), lambda: _fill(theirs, target.data))
            bulk_s, plain_s = take_turns([bulk, plain], budget_s)
    size = len(source) / GB
    return Row("blocks over loopback TCP", size / bulk_s, "GB/s", size / plain_s, "one plain buffer")


def _both(thread: ThreadPoolExecutor, send: Callable[[], None], receive: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        sending = thread.submit(send)
        receive()
        sending.result(PATIENCE_S)

    return run


def _fill(sock: socket.socket, view: memoryview) -> None:
    done = 0
    while done < len(view):
        got = sock.recv_into(view[done:])
        if not got:
            raise ConnectionError("the other side closed the connection")
        done += got
