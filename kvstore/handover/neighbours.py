"""Neighbours: the other nodes, as whoever hands over or takes over needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..elsewhere import Holder
from ..tiers import Tier

if TYPE_CHECKING:  # they import redis, which a store without a cluster need not wait for
    from ..cluster.cluster import Cluster
    from ..cluster.membership import Member
    from ..peer.client import PeerClient
    from ..peer.peers import Peers

SINCE_VERSION = 2  # of the wire: older nodes neither hand over nor take over; later ones are asked in it, too


class Neighbours:
    """See the module."""

    def __init__(self, cluster: Cluster, peers: Peers) -> None:
        self._cluster = cluster
        self._peers = peers

    @property
    def node(self) -> str:
        """This one's name."""
        return self._cluster.member.node

    def others(self, *, staying: bool) -> list[str]:
        """Names of those that know how. staying: none that will leave."""
        return [each.node for each in self._able() if not (staying and each.draining)]

    def client(self, node: str) -> PeerClient | None:
        """None: it is not there any more, or cannot be asked."""
        member = next((each for each in self._able() if each.node == node), None)
        return self._peers.client(member) if member is not None else None

    def tier(self, node: str) -> Tier | None:
        return self._cluster.tier(node)

    def set_draining(self) -> None:
        """Others learn that this node will leave."""
        self._cluster.set_draining(True)

    async def find(self, fingerprint: bytes, keys: Sequence[bytes], first: int, deadline_s: float) -> Sequence[Holder]:
        """See Elsewhere.find."""
        return await self._cluster.find(fingerprint, keys, first, deadline_s=deadline_s)

    def _able(self) -> list[Member]:
        mine = self.node
        return [each for each in self._cluster.members() if each.node != mine and each.wire_version >= SINCE_VERSION]
