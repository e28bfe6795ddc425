"""What makes a store a node of a cluster: it lends to others, asks them, and is found by them."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from .cluster.cluster import Cluster
from .cluster.membership import Member, new_epoch
from .config import ServeConfig
from .errors import KvterraceError
from .options import split_host_port
from .peer.bulk_client import BulkClient
from .peer.bulk_server import BulkServer
from .peer.fetching import Fetching
from .peer.peers import Peers
from .peer.tickets import Tickets
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

    def detail(self) -> dict[str, object]:
        """For /ready: how the cluster looks from here. A node without it is ready all the same."""
        status = self.cluster.status()
        said = "ok" if status.connected and status.joined else status.last_error or "not joined yet"
        troubled = {name: state for name, state in self.peers.states().items() if state}
        return {"cluster": said, "members": status.members, "marks": status.marks, "peers": troubled}


@contextlib.asynccontextmanager
async def in_cluster(config: ServeConfig, store: Store, servicer: Servicer, listening: str) -> AsyncGenerator[Node]:
    """Be a node for as long as the body runs. listening: HOST:PORT where the servicer is served. KvterraceError says
    why it cannot be; a Valkey that does not answer is waited for in the background."""
    assert config.cluster is not None
    tickets, client = Tickets(), BulkClient()
    bulk = await _bulk_server(config, tickets, listening)
    peers = Peers(config.node, client)
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
        fetching = servicer.fetching = Fetching(store, tickets, member.bulk)
        await cluster.start()
        unwatch = store.watch(cluster.watcher)
        store.join(cluster)
        try:
            yield Node(cluster, peers, fetching, bulk)
        finally:
            store.join(None)
            unwatch()
            await cluster.stop()
    finally:
        servicer.fetching = None
        await peers.close()
        await client.close()
        await bulk.stop()
        tickets.close()


async def _bulk_server(config: ServeConfig, tickets: Tickets, listening: str) -> BulkServer:
    host, port = split_host_port(config.bulk_listen) if config.bulk_listen else (split_host_port(listening)[0], 0)
    server = BulkServer(host, port, tickets)
    try:
        await server.start()
    except OSError as error:
        raise KvterraceError(f"--bulk-listen: cannot listen on {host}:{port}: {error.strerror}") from None
    return server


def _beside(advertised: str, bound: str) -> str:
    """The bulk channel as others dial it: the advertised host, the port that it is bound to."""
    host, _, _ = advertised.rpartition(":")
    return f"{host}:{split_host_port(bound)[1]}"
