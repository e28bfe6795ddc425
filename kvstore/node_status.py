"""The cluster as this node sees it, for Status and /status.json."""

from ..proto import kv_pb2 as pb
from .cluster.cluster import Cluster
from .handover.warming import Warming
from .peer.peers import Peers
from .replicas import Warmth


def cluster_status(cluster: Cluster, peers: Peers, warmth: Warmth, warming: Warming | None) -> pb.ClusterStatus:
    """At this moment."""
    status, member, states = cluster.status(), cluster.member, peers.states()
    return pb.ClusterStatus(
        name=cluster.name,
        node=member.node,
        epoch=bytes.fromhex(member.epoch_hex),
        connected=status.connected,
        joined=status.joined,
        draining=member.draining,
        marks=status.marks,
        backlog=status.backlog,
        last_error=status.last_error,
        round_trip_s=status.round_trip_s,
        valkey=status.address,
        members=[
            pb.MemberStatus(
                node=each.node,
                epoch=bytes.fromhex(each.epoch_hex),
                grpc=each.grpc,
                bulk=each.bulk,
                wire_version=each.wire_version,
                package_version=each.package_version,
                draining=each.draining,
                state=states.get(each.node, ""),
            )
            for each in cluster.members()
        ],
        replica_bytes=warmth.replica_bytes,
        hot_bytes=warmth.hot_bytes,
        hot_last_bytes=warmth.hot_last_bytes,
        warming=warming.progress() if warming is not None else "",
    )
