"""A sidecar of this machine through a session of its own: blocks in and out of its arena, and its round trip."""

import asyncio
import contextlib
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from ...proto import BlockLayout, Namespace, Retention, RetentionRange
from ...radix import pack_tokens
from ..errors import KvterraceError
from ..service.admin import clear_store
from ..service.channel import Address, address_parts
from ..sidecar import SidecarClient
from .memory import pages
from .row import GB, BenchError, Row

LAYOUT = BlockLayout(kv_heads=8, layers=16, planes=2, block_tokens=16, head_dim=128, dtype="bfloat16")  # 1 MiB
BLOCKS = 64
PROMPT_TOKENS = 2048
PROMPT_BLOCKS = PROMPT_TOKENS // 16
SMALL = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=16, head_dim=8, dtype="float32")
DRAM = "192MiB"
_LOWEST = Retention(priority=0, ttl_s=60.0)
START_S, STOP_S, CALL_S = 20.0, 5.0, 5.0


@contextlib.contextmanager
def own_sidecar(arena_dir: Path) -> Generator[str]:
    """A `kvterrace serve` of 192 MiB, gone afterwards. BenchError: it does not start."""
    with tempfile.TemporaryDirectory(prefix="kvterrace-bench-") as folder:
        path, log = Path(folder) / "kv.sock", Path(folder) / "log"
        command = [sys.executable, "-m", "kvterrace.kvstore", "serve", "--uds", str(path), "--dram", DRAM]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KVTERRACE_")}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, "--arena-dir", str(arena_dir)], stdout=out, stderr=out, env={**kept, "PYTHONSAFEPATH": "1"}
            )
        try:
            end = time.monotonic() + START_S
            while "serving on" not in log.read_text():
                if process.poll() is not None or time.monotonic() > end:
                    why = (log.read_text().strip().splitlines() or ["it says nothing"])[-1]
                    raise BenchError(f"a sidecar to measure does not start: {why}")
                time.sleep(0.02)
            yield f"unix:{path}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)


async def measure_sidecar(address: Address, budget_s: float) -> list[Row]:
    """BenchError: it does not answer, or its arena is elsewhere. What was written is cleared, where that is allowed."""
    clients = [await _connect(address, layout) for layout in (LAYOUT, SMALL)]
    try:
        rows = await _arena(clients[0], budget_s)
        rows.append(await _round_trip(clients[1], budget_s))
    finally:
        for client in clients:
            with contextlib.suppress(KvterraceError):  # it leaves by itself: its retention is the lowest
                await clear_store(address, client.namespace.fingerprint(), timeout_s=CALL_S)
            await client.close()
    return rows


async def _connect(address: Address, layout: BlockLayout) -> SidecarClient:
    plain, credentials = address_parts(address)
    namespace = Namespace(secrets.token_bytes(32), layout, producer="kvterrace bench", label="kvterrace-bench")
    client = SidecarClient(plain, namespace, client="kvterrace-bench", credentials=credentials)
    await client.start()
    if not client.connected or client.arena is None:
        await client.close()
        raise BenchError(f"no session with the sidecar at {plain}: is it there, and its arena on this host?")
    return client


async def _arena(client: SidecarClient, budget_s: float) -> list[Row]:
    """64 blocks of 1 MiB in, then out; beside a memcpy of the same bytes, in turns."""
    source, target = pages(BLOCKS * LAYOUT.block_bytes), pages(BLOCKS * LAYOUT.block_bytes, None)
    assert client.arena is not None
    await asyncio.to_thread(client.arena.wait_prefault, CALL_S)
    sums = [xxhash.xxh3_64_intdigest(row.tobytes()) for row in source.reshape(BLOCKS, -1)]
    writes, reads, copies = list[float](), list[float](), list[float]()
    end = time.perf_counter() + 2 * budget_s
    turn = 0
    while turn < 4 or (time.perf_counter() < end and turn < 50):
        tokens = pack_tokens(range(turn * 10_000, turn * 10_000 + BLOCKS * LAYOUT.block_tokens))
        took = [await _write(client, tokens, source, sums), await _read(client, tokens, target)]
        began = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - began)
        for kept, seconds in zip((writes, reads, copies), took, strict=True):
            kept.append(seconds)
        turn += 1
    size = len(source) / GB
    write_s, read_s, copy_s = (statistics.median(each[1:]) for each in (writes, reads, copies))  # the first warms up
    copy = "memcpy of the same bytes"
    return [
        Row("blocks into the arena", size / write_s, "GB/s", size / copy_s, copy),
        Row("blocks out of it, compared", size / read_s, "GB/s", size / copy_s, copy),
    ]


async def _write(client: SidecarClient, tokens: bytes, source: NDArray[np.uint8], sums: list[int]) -> float:
    """Seconds. The checksums are known, as they are where the connector copies and sums at once."""
    began = time.perf_counter()
    given = await client.reserve(tokens, start=0, count=BLOCKS, retention=[RetentionRange(0, BLOCKS, _LOWEST)])
    if len(given.slots) != BLOCKS or given.arena is None:
        await client.abort(given.lease)
        raise BenchError(f"the sidecar has no room for {BLOCKS} blocks of 1 MiB ({given.reason})")
    size = LAYOUT.block_bytes
    for row, ref in enumerate(given.slots):
        given.arena.block(ref.slot)[:size] = source[row * size : (row + 1) * size]
    if not await client.commit(given.lease, sums):
        raise BenchError("the sidecar did not take the blocks")
    return time.perf_counter() - began


async def _read(client: SidecarClient, tokens: bytes, target: NDArray[np.uint8]) -> float:
    began = time.perf_counter()
    given = await client.acquire(tokens, skip=0, deadline_s=0.0)
    if len(given.slots) != BLOCKS or given.arena is None:
        await client.release(given.lease)
        raise BenchError(f"the sidecar gave {len(given.slots)} of {BLOCKS} blocks ({given.reason})")
    size = LAYOUT.block_bytes
    for row, ref in enumerate(given.slots):
        into = target[row * size : (row + 1) * size]
        into[:] = given.arena.block(ref.slot)[:size]
        if xxhash.xxh3_64_intdigest(into.data) != ref.checksum:
            raise BenchError(f"block {row} came back with another checksum: run `kvterrace verify`")
    await client.release(given.lease)
    return time.perf_counter() - began


async def _round_trip(client: SidecarClient, budget_s: float) -> Row:
    """Acquire and release of a known prompt; beside as many bytes over a plain Unix socket and back."""
    tokens = pack_tokens(range(PROMPT_TOKENS))
    wish = [RetentionRange(0, PROMPT_BLOCKS, _LOWEST)]
    given = await client.reserve(tokens, start=0, count=PROMPT_BLOCKS, retention=wish)
    if not await client.commit(given.lease, [0] * len(given.slots)):
        raise BenchError(f"the sidecar did not take {PROMPT_BLOCKS} small blocks ({given.reason})")
    taken: list[float] = []
    end = time.perf_counter() + budget_s
    while len(taken) < 20 or (time.perf_counter() < end and len(taken) < 1000):
        began = time.perf_counter()
        given = await client.acquire(tokens, skip=0, deadline_s=0.0)
        await client.release(given.lease)
        taken.append(time.perf_counter() - began)
    limit_s = await asyncio.to_thread(_plain_round_trip, len(tokens), 20 * PROMPT_BLOCKS)
    name = f"acquire and release, {PROMPT_TOKENS:,} tokens"
    return Row(name, statistics.median(taken) * 1e3, "ms", limit_s * 1e3, "as many bytes, Unix socket")


def _plain_round_trip(there: int, back: int) -> float:
    """Median seconds of 200 between two threads."""
    ours, theirs = socket.socketpair()
    question, answer, turns = bytes(there), bytes(back), 200

    def serve() -> None:
        for _ in range(turns):
            theirs.recv(there, socket.MSG_WAITALL)
            theirs.sendall(answer)

    server = threading.Thread(target=serve)
    server.start()
    taken: list[float] = []
    with ours, theirs:
        for _ in range(turns):
            began = time.perf_counter()
            ours.sendall(question)
            ours.recv(back, socket.MSG_WAITALL)
            taken.append(time.perf_counter() - began)
        server.join()
    return statistics.median(taken)
