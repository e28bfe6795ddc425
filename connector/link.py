"""Link: what the fetching and the saving half share about one store. A value; owns nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..kvstore.types import StoreClient
from ..proto import BlockLayout
from .bridge import Bridge
from .limits import ConnectorLimits
from .outbox import Outbox

TOKEN_BYTES = 4
# Nearest first: the order in which a shortened result keeps its tokens.
TIER_ORDER = ("dram", "nvme", "peer", "remote")


@dataclass(frozen=True, slots=True)
class Link:
    client: StoreClient
    bridge: Bridge
    outbox: Outbox
    limits: ConnectorLimits
    layout: BlockLayout
    clock: Callable[[], float]

    @property
    def attached(self) -> bool:
        """Whether there is a store at the moment. Any thread may ask: it reads one attribute, once."""
        return self.client.arena is not None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's packed tokens."""
        return self.layout.block_tokens * TOKEN_BYTES

    def prefix(self, tokens: bytes, blocks: int) -> bytes:
        """The first `blocks` full blocks of packed tokens."""
        return tokens[: blocks * self.block_bytes]

    def give_back(self, lease: int, corrupt: tuple[int, ...] = ()) -> None:
        """Release a read lease in the background. Once the bridge is closed the session's end has done it."""

        async def release() -> None:
            await self.bridge.ask(self.client.release(lease, corrupt=corrupt), self.limits.late_s, None)

        self.bridge.follow_up(release)


def shorten(tiers: Mapping[str, int], tokens: int) -> dict[str, int]:
    """Tokens by tier of the leading `tokens` tokens, where only the totals are known: nearer tiers keep theirs."""
    kept: dict[str, int] = {}
    left = tokens
    for tier in sorted(tiers, key=lambda name: TIER_ORDER.index(name) if name in TIER_ORDER else len(TIER_ORDER)):
        share = min(left, tiers[tier])
        if share > 0:
            kept[tier] = share
        left -= share
    return kept
