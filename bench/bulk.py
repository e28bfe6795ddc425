"""How fast blocks cross the bulk channel between two processes, against one plain TCP connection on the same loopback,
and how fast the same blocks come through TLS, and as parts of a gRPC answer.

128 blocks of 737,280 bytes, as 2,048 tokens of a 135M-parameter model in float32 make them. A transfer is timed from
receive() to its end, so it includes the ticket, the answer and the hops to a thread and back; its checksums are the
caller's and not in it. The plain connection has the bytes in one piece on both sides: one sendall, and recv_into until
all are there. All write to the same memory.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import grpc
import grpc.aio
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kvterrace.kvstore.lending import Loan
from kvterrace.kvstore.peer.bulk_client import BulkClient
from kvterrace.kvstore.peer.bulk_server import BulkServer
from kvterrace.kvstore.peer.client import PeerClient
from kvterrace.kvstore.peer.fetching import MAX_DEADLINE_S, Fetching
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.kvstore.service.channel import SERVER_OPTIONS
from kvterrace.kvstore.service.frames import WIRE_VERSION
from kvterrace.kvstore.service.stub import KVStoreServicer, add_servicer
from kvterrace.proto import kv_pb2 as pb

BLOCKS = 128
BLOCK_BYTES = 737_280
SIZE_BYTES = BLOCKS * BLOCK_BYTES
REPEATS = 7
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """Of the other process: addresses of its bulk servers, without and with TLS, and of its gRPC server, the port of
    its plain TCP server, and tickets for either, in hexadecimal, one for each round."""

    bulk: str
    tls: str
    tickets: list[str]
    tls_tickets: list[str]
    plain: int
    grpc: str


def run() -> list[dict[str, object]]:
    with holder() as told:
        times = asyncio.run(measure(told))
    rates = {way: SIZE_BYTES / statistics.median(seconds) / 1e9 for way, seconds in times.items()}
    plain = f"one plain TCP connection with recv_into, {rates['plain']:.2f} GB/s in the same run"
    size = f"{BLOCKS} blocks of {BLOCK_BYTES} bytes between two processes on loopback"
    return [
        {"metric": "bulk.tcp_ratio", "value": rates["bulk"] / rates["plain"], "unit": "ratio", "of": plain},
        {"metric": "bulk.gbps", "value": rates["bulk"], "unit": "GB/s", "of": size},
        {"metric": "bulk.tls_gbps", "value": rates["tls"], "unit": "GB/s", "of": size},
        {"metric": "bulk.grpc_gbps", "value": rates["grpc"], "unit": "GB/s", "of": size},
    ]


async def measure(told: Told) -> dict[str, list[float]]:
    """Seconds by each way, interleaved; the first round is not counted."""
    memory = np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
    expected = content()
    views, whole = [row.data for row in memory], memory.reshape(-1).data
    bulk, secure, peer = BulkClient(), BulkClient(ssl=trusting()), PeerClient(told.grpc)
    request = pb.FetchRequest(
        wire_version=WIRE_VERSION, fingerprint=bytes(32), tokens=bytes(4), deadline_s=MAX_DEADLINE_S, node="bench"
    )

    async def by_bulk(round: int) -> None:
        await bulk.receive(told.bulk, bytes.fromhex(told.tickets[round]), views, deadline_s=WAIT_S)

    async def by_tls(round: int) -> None:
        await secure.receive(told.tls, bytes.fromhex(told.tls_tickets[round]), views, deadline_s=WAIT_S)

    async def by_plain(_: int) -> None:
        receive_plain(connection, whole)

    async def by_grpc(_: int) -> None:
        async with peer.fetch(request, timeout_s=WAIT_S) as answer:
            await answer.offer()
            await answer.read_into(views)

    ways = {"bulk": by_bulk, "plain": by_plain, "tls": by_tls, "grpc": by_grpc}
    times: dict[str, list[float]] = {way: [] for way in ways}
    with socket.create_connection(("127.0.0.1", told.plain)) as connection:
        for round in range(len(told.tickets)):
            for way, receive in ways.items():
                memory[:, 0] = 0
                begun = time.perf_counter()
                await receive(round)
                times[way].append(time.perf_counter() - begun)
                if not np.array_equal(memory, expected):
                    raise RuntimeError(f"other bytes came by {way} than were sent")
    for client in (bulk, secure, peer):
        await client.close()
    return {way: seconds[1:] for way, seconds in times.items()}


def trusting() -> ssl.SSLContext:
    """Of a client that believes any certificate: what is measured is the cipher."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def certified() -> ssl.SSLContext:
    """Of a server with a certificate that nobody signed."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    dated = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(hours=1))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(dated.sign(key, hashes.SHA256()).public_bytes(pem))
        file.write(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def receive_plain(connection: socket.socket, whole: memoryview) -> None:
    connection.sendall(b"x")
    done = 0
    while done < len(whole):
        got = connection.recv_into(whole[done:])
        if not got:
            raise RuntimeError("the plain connection ended")
        done += got


def content() -> np.ndarray:
    return np.random.default_rng(0).integers(1, 256, (BLOCKS, BLOCK_BYTES), dtype=np.uint8)


@contextmanager
def holder() -> Iterator[Told]:
    """The other process."""
    command = [sys.executable, "-P", __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Told(**json.loads(process.stdout.readline()))
        process.stdin.close()
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait(WAIT_S)


class Holder(KVStoreServicer):
    """Lends the same blocks to all who ask, for any prompt."""

    def __init__(self) -> None:
        self.memory = content()
        self.fetching = Fetching(self)

    async def lend(self, fingerprint: bytes, tokens: bytes, first: int, *, max_blocks: int, deadline_s: float) -> Loan:
        return Loan(0, list(self.memory), [0] * BLOCKS, [bytes(32)] * BLOCKS, lambda: None)

    async def Fetch(self, request: pb.FetchRequest, context: Any) -> None:
        async with aclosing(self.fetching.fetch(request)) as parts:
            async for part in parts:
                await context.write(part)


async def hold() -> None:
    """The other process, until its stdin ends."""
    holds, tickets = Holder(), Tickets(ttl_s=10 * WAIT_S, peer_bytes=1 << 60)
    bulk, secure = BulkServer("127.0.0.1", 0, tickets), BulkServer("127.0.0.1", 0, tickets, ssl=certified())
    served = grpc.aio.server(options=SERVER_OPTIONS)
    add_servicer(holds, served)
    port = served.add_insecure_port("127.0.0.1:0")
    await bulk.start()
    await secure.start()
    await served.start()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_plain, args=(listener, holds.memory.reshape(-1).data), daemon=True).start()
    loans = [await holds.lend(b"", b"", 0, max_blocks=BLOCKS, deadline_s=WAIT_S) for _ in range(2 * (REPEATS + 1))]
    issued = [ticket.hex() for loan in loans if (ticket := tickets.issue(loan)) is not None]
    told = Told(bulk.address, secure.address, issued[::2], issued[1::2], listener.getsockname()[1], f"127.0.0.1:{port}")
    print(json.dumps(asdict(told)), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await served.stop(0)
    await bulk.stop()
    await secure.stop()
    tickets.close()


def serve_plain(listener: socket.socket, whole: memoryview) -> None:
    connection, _ = listener.accept()
    while connection.recv(1):
        connection.sendall(whole)


if __name__ == "__main__":
    asyncio.run(hold())
