"""ScorePeers: the other nodes of a cluster, as far as scores need them. A connection each, made on first use."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Protocol

from ..proto import kv_pb2 as pb
from .cluster.membership import Member
from .elsewhere import Holder
from .peer.client import PeerClient, PeerError
from .scores import Known, ScoreError, Scores


@contextlib.asynccontextmanager
async def scoring(scores: Scores, cluster: "Directory", dial: Callable[[str], PeerClient]) -> AsyncGenerator[None]:
    """Scores ask the cluster's other nodes, too, while the body runs. dial: makes a client for an address."""
    others = scores.others = ScorePeers(cluster, dial)
    end = cluster.on_members(others.keep)
    try:
        yield
    finally:
        scores.others = None
        end()
        await others.close()


class Directory(Protocol):
    """The cluster."""

    @property
    def member(self) -> Member: ...
    def members(self) -> list[Member]: ...
    def on_members(self, watcher: Callable[[Sequence[Member]], None]) -> Callable[[], None]: ...
    async def find(
        self, fingerprint: bytes, keys: Sequence[bytes], first: int, *, deadline_s: float
    ) -> Sequence[Holder]: ...


class ScorePeers:
    """An Others. dial: makes a client for an address; ValueError: it is none."""

    def __init__(self, cluster: Directory, dial: Callable[[str], PeerClient]) -> None:
        self._cluster = cluster
        self._dial = dial
        self._clients: dict[str, tuple[int, str, PeerClient]] = {}  # by node: epoch and address
        self._closing: set[asyncio.Task[None]] = set()

    def names(self) -> list[str]:
        ours = self._cluster.member.node
        return [member.node for member in self._cluster.members() if member.node != ours]

    async def ask(self, node: str, request: pb.ScoreRequest, timeout_s: float) -> pb.NodeScore:
        client = self._client(node)
        if client is None:
            raise ScoreError("gone")
        try:
            reply = await client.score(request, timeout_s=max(timeout_s, 0.001))
        except PeerError as error:
            raise ScoreError(error.reason) from None
        if len(reply.nodes) != 1:
            raise ScoreError("protocol")
        return reply.nodes[0]

    async def find(self, known: Known, tokens: bytes, timeout_s: float) -> Sequence[Holder]:
        return await self._cluster.find(known.fingerprint, known.keys(tokens), 0, deadline_s=timeout_s)

    def keep(self, members: Iterable[Member]) -> None:
        """These are the members now: close what belonged to others, or to an earlier life of them."""
        now = {member.node: (member.epoch, member.grpc) for member in members}
        for node, (epoch, address, _) in list(self._clients.items()):
            if now.get(node) != (epoch, address):
                self._retire(node)

    async def close(self) -> None:
        """Closing twice is harmless."""
        for node in list(self._clients):
            self._retire(node)
        if self._closing:
            await asyncio.wait(set(self._closing))

    def _client(self, node: str) -> PeerClient | None:
        member = next((each for each in self._cluster.members() if each.node == node), None)
        if member is None:
            return None
        known = self._clients.get(node)
        if known is not None and known[:2] == (member.epoch, member.grpc):
            return known[2]
        self._retire(node)
        try:
            client = self._dial(member.grpc)
        except ValueError:
            return None
        self._clients[node] = member.epoch, member.grpc, client
        return client

    def _retire(self, node: str) -> None:
        known = self._clients.pop(node, None)
        if known is not None:
            closing = asyncio.get_running_loop().create_task(known[2].close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
