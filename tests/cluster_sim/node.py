"""A node of the simulated cluster: the product's parts, put together as kvstore/node.py does."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.cluster.cluster import Cluster
from kvterrace.kvstore.cluster.marks import is_mark
from kvterrace.kvstore.cluster.membership import Member
from kvterrace.kvstore.cluster.valkey import Outside
from kvterrace.kvstore.handover.answering import Answering
from kvterrace.kvstore.handover.drain import Drain
from kvterrace.kvstore.handover.neighbours import Neighbours
from kvterrace.kvstore.handover.warming import Warming
from kvterrace.kvstore.insight import Insight
from kvterrace.kvstore.peer.client import PeerClient
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.peer.peers import Peers
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.kvstore.security import edge
from kvterrace.kvstore.security.identity import LOCAL
from kvterrace.kvstore.service.frames import PACKAGE_VERSION, WIRE_VERSION
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.service.stub import add_servicer
from kvterrace.kvstore.store import Store
from kvterrace.proto import PAGE_BYTES

from .bulk import BulkEnd, BulkReceiver
from .disk import Disk
from .net import Net
from .rpc import Channel, Server
from .valkey_net import ValkeyHost
from .virtual import Life, VirtualLoop

ENTRY_TTL_S = 6
LEASE_S = 2.5


@dataclass
class Held:
    """A watcher that notes what a store says it has: block keys by namespace and ordinal."""

    marks: dict[bytes, set[bytes]] = field(default_factory=dict)

    def stored(
        self, tier: str, fingerprint: bytes, first: int, keys: Sequence[bytes], parent: bytes, tokens: bytes
    ) -> None:
        for ordinal, key in enumerate(keys, first):
            if is_mark(ordinal):
                self.marks.setdefault(fingerprint, set()).add(key)

    def removed(self, tier: str, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        pass

    def cleared(self, tier: str, fingerprint: bytes) -> None:
        pass


class SimNode:
    """One process of a node. disk: what outlives it. Made within its life's context."""

    def __init__(
        self,
        loop: VirtualLoop,
        net: Net,
        valkey: ValkeyHost,
        name: str,
        life: Life,
        rng: random.Random,
        disk: Disk | None,
    ) -> None:
        self.name, self.life, self.net, self.host = name, life, net, name
        self.grpc, self.bulk = f"{name}:1", f"{name}:2"
        self.arena = Arena.anonymous(rng.choice((24, 40, 64)) * PAGE_BYTES)
        below = None if disk is None else Below(disk, disk.inventory(), in_flight_share=0.8, backlog_share=0.5)
        insight = Insight(clock=loop.time, wall=loop.time, cpu=loop.time)
        self.store = Store(self.arena, below=below, clock=loop.time, ghost_entries=1024, insight=insight)
        self.tickets = Tickets(max_tickets=rng.choice((2, 256)), ttl_s=1.0)
        self.peers = Peers(
            name,
            BulkReceiver(net, name) if rng.random() < 0.8 else None,
            clock=loop.time,
            in_flight_bytes=rng.choice((8, 64, 1 << 20)) * PAGE_BYTES,
            dial=lambda address: PeerClient(address, dial=lambda address, _: Channel(net, name, address)),
        )
        member = Member(name, rng.getrandbits(64) or 1, self.grpc, self.bulk, WIRE_VERSION, PACKAGE_VERSION)
        self.cluster = Cluster(
            "redis://valkey",
            "sim",
            member,
            self.peers.tier,
            lease_s=LEASE_S,
            entry_ttl_s=ENTRY_TTL_S,
            outside=Outside(loop.time, rng, lambda address, timeout_s: valkey.connect(name)),
        )
        self.cluster.on_members(self.peers.keep)
        self.servicer = Servicer(self.store, "", self.arena.boot_id, loop.time)
        self.fetching = self.servicer.fetching = Fetching(self.store, self.tickets, self.bulk)
        self.fetching.progress = self.store.progress
        self.cluster.on_members(self._keep_replicas)
        neighbours = Neighbours(self.cluster, self.peers)
        self.servicer.answering = Answering(self.store.stock, neighbours)
        self.drain = Drain(self.store.stock, self.store.flush, self._leave, loop.time)
        self.drain.neighbours = neighbours
        self.left = asyncio.Event()  # it has drained, and would end itself
        warms = rng.random() < 0.3
        self.warming = (
            Warming(self.store.stock, neighbours, max_bytes=32 * PAGE_BYTES, deadline_s=1.0) if warms else None
        )
        life.context.run(edge._CALLER.set, LOCAL)

    async def start(self) -> None:
        """Serve, and join. NodeTaken: its former self's lease is not over."""
        server = Server(self.net, self.host, self.life)
        add_servicer(self.servicer, server)
        self.net.listening[self.grpc] = server
        self.net.listening[f"bulk {self.bulk}"] = BulkEnd(self.net, self.host, self.life, self.tickets)
        await self.cluster.start()
        self.store.watch(self.cluster.watcher)
        self.store.join(self.cluster)
        if self.warming is not None:
            self.life.spawn(self.warming.run())

    def kill(self) -> None:
        for address in (self.grpc, f"bulk {self.bulk}"):
            self.net.listening.pop(address, None)
        self.life.kill()

    async def stop(self) -> None:
        """In order, as a node that is told to."""
        self.store.join(None)
        await self.cluster.stop()
        await self.peers.close()
        self.tickets.close()
        self.kill()

    def _leave(self) -> None:
        self.left.set()

    def _keep_replicas(self, members: Sequence[Member]) -> None:
        self.store.stock.replicas.keep({each.node: each.epoch for each in members if not each.draining})

    def held(self) -> dict[bytes, set[bytes]]:
        """Marks of what the store has, by namespace, counted anew."""
        noted = Held()
        self.store.watch(noted)()
        return noted.marks
