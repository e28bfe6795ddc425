"""Peers: a PeerTier for each member of the cluster that is asked for blocks, made on first use. On the store's loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from ..service.frames import WIRE_VERSION, common_version
from ..tiers import Tier
from .client import PeerClient
from .counts import FetchCounts
from .tier import IN_FLIGHT_BYTES, PeerTier, Receiver

log = logging.getLogger(__name__)


class Address(Protocol):
    """Of a member: node, its name; epoch: another after each start of it; grpc: where it listens."""

    @property
    def node(self) -> str: ...
    @property
    def epoch(self) -> object: ...
    @property
    def grpc(self) -> str: ...
    @property
    def bulk(self) -> str: ...
    @property
    def wire_version(self) -> int: ...


class Peers:
    """node: this one's name. bulk: the bulk channel's client, which the caller closes after this; None = gRPC only.
    dial: makes a client for an address; ValueError: it is none."""

    def __init__(
        self,
        node: str,
        bulk: Receiver | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
        dial: Callable[[str], PeerClient] = PeerClient,
    ) -> None:
        self._node = node
        self._bulk = bulk
        self._clock = clock
        self._in_flight_bytes = in_flight_bytes
        self._dial = dial
        self._tiers: dict[str, tuple[object, PeerTier | None]] = {}  # by node: epoch, and None if it cannot be asked
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self.counts = FetchCounts()

    def tier(self, member: Address) -> Tier | None:
        """How to get blocks from it. None: it cannot be asked, has failed lately, or all is closed."""
        if self._closed:
            return None
        known = self._tiers.get(member.node)
        if known is None or known[0] != member.epoch:
            self._retire(member.node)
            known = self._tiers[member.node] = member.epoch, self._make(member)
        tier = known[1]
        return tier if tier is not None and tier.ready else None

    def client(self, member: Address) -> PeerClient | None:
        """Who asks it other things, whether or not it has failed lately. None: it cannot be asked, or all is closed."""
        self.tier(member)
        _, tier = self._tiers.get(member.node, (None, None))
        return tier.client if tier is not None else None

    def keep(self, members: Iterable[Address]) -> None:
        """These are the members now: close what belonged to others, or to an earlier life of them."""
        now = {member.node: member.epoch for member in members}
        for node, (epoch, _) in list(self._tiers.items()):
            if now.get(node) != epoch:
                self._retire(node)

    def states(self) -> dict[str, str]:
        """What is wrong with each peer that was asked so far, for people; "" = nothing."""
        return {
            node: tier.state() if tier is not None else "cannot be asked"
            for node, (_, tier) in sorted(self._tiers.items())
        }

    @property
    def in_flight_bytes(self) -> int:
        return sum(tier.in_flight_bytes for _, tier in self._tiers.values() if tier is not None)

    async def close(self) -> None:
        """Close all. Closing twice is harmless."""
        self._closed = True
        for node in list(self._tiers):
            self._retire(node)
        if self._closing:
            await asyncio.wait(set(self._closing))

    def _make(self, member: Address) -> PeerTier | None:
        version = common_version(member.wire_version)
        if version is None:
            log.warning("%s speaks version %s, this node %s: not asked", member.node, member.wire_version, WIRE_VERSION)
            return None
        try:
            client = self._dial(member.grpc)
        except ValueError as error:
            log.warning("%s has no address that can be dialled: %s", member.node, error)
            return None
        return PeerTier(
            client,
            self._node,
            self._bulk,
            self.counts,
            clock=self._clock,
            in_flight_bytes=self._in_flight_bytes,
            wire_version=version,
            bulk_address=member.bulk,
        )

    def _retire(self, node: str) -> None:
        _, tier = self._tiers.pop(node, (None, None))
        if tier is not None:
            closing = asyncio.get_running_loop().create_task(tier.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
