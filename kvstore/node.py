"""What makes a store a node of a cluster: it lends to others, asks them, and is found by them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from ..proto import kv_pb2 as pb
from .cluster.cluster import Cluster
from .cluster.membership import Member, new_epoch
from .config import ServeConfig
from .errors import KvterraceError
from .handover.answering import Answering
from .handover.neighbours import Neighbours
from .handover.stock import Stock
from .handover.warming import Warming
from .node_status import cluster_status
from .options import split_host_port
from .peer.bulk_client import BulkClient
from .peer.bulk_server import BulkServer
from .peer.client import PeerClient
from .peer.fetching import Fetching
from .peer.peers import Peers
from .peer.tickets import Tickets
from .score_peers import scoring
from .security.setup import Security
from .security.tls import Tls
from .service.frames import PACKAGE_VERSION, WIRE_VERSION
from .service.servicer import Servicer
from .store import Store


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a node whose state and counters others read."""

    cluster: Cluster
    peers: Peers
    fetching: Fetching
    bulk: BulkServer
    stock: Stock
    warming: Warming | None

    def status(self) -> pb.ClusterStatus:
        """The cluster as it looks from here."""
        return cluster_status(self.cluster, self.peers, self.stock.warmth(), self.warming)

    def detail(self) -> dict[str, object]:
        """For /ready: how the cluster looks from here. A node without it is ready all the same."""
        status = self.cluster.status()
        said = "ok" if status.connected and status.joined else status.last_error or "not joined yet"
        troubled = {name: state for name, state in self.peers.states().items() if state}
        warming = {"warming": self.warming.progress()} if self.warming is not None and not self.warming.over else {}
        return {"cluster": said, "members": status.members, "marks": status.marks, "peers": troubled, **warming}


@contextlib.asynccontextmanager
async def in_cluster(
    config: ServeConfig, store: Store, servicer: Servicer, listening: str, security: Security
) -> AsyncGenerator[Node]:
    """Be a node for as long as the body runs. listening: HOST:PORT where the servicer is served. security: what is
    shown to other nodes, and asked of them. KvterraceError says why it cannot be; a Valkey that does not answer is
    waited for in the background."""
    assert config.cluster is not None
    shown = security.node
    tickets, client = Tickets(), BulkClient(shown.context if shown is not None else None)
    bulk = await _bulk_server(config, tickets, listening, security.tls)
    peers = Peers(config.node, client, dial=lambda address: PeerClient(address, shown))
    advertised = config.advertise or listening
    try:
        member = Member(
            node=config.node,
            epoch=new_epoch(),
            grpc=advertised,
            bulk=_beside(advertised, bulk.address),
            wire_version=WIRE_VERSION,
            package_version=PACKAGE_VERSION,
        )
        try:
            cluster = Cluster(config.cluster, config.cluster_name, member, peers.tier)
        except ValueError as error:
            raise KvterraceError(f"--cluster: {error}") from None
        cluster.on_members(peers.keep)
        cluster.on_members(lambda members: store.stock.replicas.keep(_staying(members)))
        fetching = servicer.fetching = Fetching(store, tickets, member.bulk)
        fetching.progress = store.progress
        fetching.tracer = store.tracer
        await cluster.start()
        unwatch = store.watch(cluster.watcher)
        store.join(cluster)
        try:
            async with (
                scoring(servicer.scores, cluster, lambda address: PeerClient(address, shown)),
                _handing_over(config, store, servicer, cluster, peers) as warming,
            ):
                node = Node(cluster, peers, fetching, bulk, store.stock, warming)
                servicer.cluster_status = node.status
                yield node
        finally:
            servicer.cluster_status = None
            store.join(None)
            unwatch()
            await cluster.stop()
    finally:
        servicer.fetching = None
        await peers.close()
        await client.close()
        await bulk.stop()
        tickets.close()


@contextlib.asynccontextmanager
async def _handing_over(
    config: ServeConfig, store: Store, servicer: Servicer, cluster: Cluster, peers: Peers
) -> AsyncGenerator[Warming | None]:
    """Answer nodes that start or leave, and be one that starts, if that is wanted, and one that leaves once it is."""
    neighbours, leaving = Neighbours(cluster, peers), servicer.leaving
    servicer.answering = Answering(store.stock, neighbours)
    if leaving is not None:
        leaving.neighbours = neighbours
    warming, task = None, None
    if config.warm_from_peers is not None:
        size, seconds = config.warm_from_peers, config.warm_deadline
        warming = Warming(store.stock, neighbours, max_bytes=size, deadline_s=seconds)
        task = asyncio.create_task(warming.run())
    try:
        yield warming
    finally:
        servicer.answering = None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if leaving is not None:
            await leaving.close()


def _staying(members: Sequence[Member]) -> dict[str, object]:
    """Those that keep what they have, with their epochs."""
    return {each.node: each.epoch for each in members if not each.draining}


async def _bulk_server(config: ServeConfig, tickets: Tickets, listening: str, tls: Tls | None) -> BulkServer:
    host, port = split_host_port(config.bulk_listen) if config.bulk_listen else (split_host_port(listening)[0], 0)
    server = BulkServer(host, port, tickets, tls.context() if tls is not None else None)
    try:
        await server.start()
    except OSError as error:
        raise KvterraceError(f"--bulk-listen: cannot listen on {host}:{port}: {error.strerror}") from None
    return server


def _beside(advertised: str, bound: str) -> str:
    """The bulk channel as others dial it: the advertised host, the port that it is bound to."""
    host, _, _ = advertised.rpartition(":")
    return f"{host}:{split_host_port(bound)[1]}"
