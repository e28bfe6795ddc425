"""A store over a small NVMe tier on a real directory, its Servicer on a Unix socket, and the program against it."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.cli import app
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.security.setup import secured
from kvterrace.kvstore.service.server import GrpcServer
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens
from typer.testing import CliRunner

B = 4
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=B, head_dim=64, dtype="float16")
SEGMENT_BYTES = 64 * 4096


class Node:
    """One store; `folder` is its disk."""

    def __init__(self, folder: Path, slots: int = 256) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        path = NvmePath(folder, 32 * SEGMENT_BYTES, min_free_bytes=0, daily_write_bytes=0)
        tier = NvmeTier.open([path], segment_bytes=SEGMENT_BYTES)
        below = Below(tier, list(tier.inventory()), backlog_share=1.0, in_flight_share=1.0)
        self.store = Store(Arena.anonymous(slots * 4096), below=below)
        self.server: GrpcServer | None = None

    def open(self, weights: bytes = b"weights-0", **fields):
        return self.store.open_session(Namespace(weights, LAYOUT, **fields), client="test")

    @staticmethod
    def tokens(*ids: int) -> bytes:
        """A block of each number."""
        return pack_tokens(np.repeat(np.array(ids, dtype=np.int32), B))

    def save(self, session, tokens: bytes) -> int:
        given = session.reserve(tokens, start=0, count=len(tokens) // 4 // B)
        sums = []
        for ordinal, ref in zip(given.blocks, given.slots, strict=True):
            block = session.arena.block(ref.slot)[: LAYOUT.block_bytes]
            block[:] = xxhash.xxh3_64_intdigest(tokens[: (ordinal + 1) * B * 4]) % 251
            sums.append(xxhash.xxh3_64_intdigest(block))
        assert not given.lease or session.commit(given.lease, sums)
        return len(given.blocks)

    async def saved(self, session, tokens: bytes) -> int:
        """And written down."""
        count = self.save(session, tokens)
        assert await self.store.flush(10.0) == 0
        return count

    async def found(self, session, tokens: bytes) -> int:
        """Blocks that a request would get."""
        got = await session.acquire(tokens, skip=0, deadline_s=5.0)
        if got.lease:
            session.release(got.lease)
        return len(got.slots)

    async def killed(self, to: Path) -> "Node":
        """What a kill -9 at this moment would leave, started again."""
        shutil.copytree(self.folder, to)
        return Node(to)

    async def stop(self) -> None:
        self.store.check()
        await self.store.stop(5.0)
        self.store.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "disk")
    yield made
    await made.stop()


@pytest.fixture
async def start_node() -> AsyncIterator[Callable[[Node], Node]]:
    """Sees that further nodes are stopped."""
    others: list[Node] = []

    def keep(other: Node) -> Node:
        others.append(other)
        return other

    yield keep
    for each in others:
        await each.stop()


class Program:
    """`kvterrace` against that node."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def __call__(self, command: str, *arguments: object) -> tuple[int, str, str]:
        """Exit code, stdout, stderr; on a thread, with a loop of its own."""
        line = [command, *map(str, arguments), "--address", self.address]
        result = await asyncio.to_thread(CliRunner().invoke, app, line)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    async def json(self, command: str, *arguments: object):
        code, out, err = await self(command, *arguments, "--json")
        assert code == 0, err
        return json.loads(out)


@pytest.fixture
async def kvterrace(node: Node, tmp_path: Path) -> AsyncIterator[Program]:
    uds = tmp_path / "s"
    with secured(load_config({"uds": uds})) as security:
        node.server = GrpcServer(Servicer(node.store, "/nowhere", b"b" * 16), uds, None, security)
        await node.server.start()
        yield Program(f"unix:{uds}")
        await node.server.stop()
