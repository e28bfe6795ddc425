"""Prefixes: what is stored, as runs of blocks of the radix tree that have no branch between them, found and listed by
the keys of their last blocks. Reads the indexes of DRAM and of the lower tier; changes nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..proto import DEFAULT_RETENTION, Retention
from .depot import Depot
from .events.sight import Sees, everything
from .residents import Residents

DEFAULT_LIMIT = 50


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """One run, in whatever tier.

    key: of its last block: names the prefix that ends there. parent: of the block above its first, b"" = there is none.
    first_block: ordinal of its first. prefix_tokens: from the prompt's start to its end. hits, age_s: of its first
    block; idle_s: since one of its blocks was used. retention: of its last block. leases: held on it now. below_blocks:
    in all that hangs below it. tokens: packed, the first ones of the run, as many as were asked for.
    """

    fingerprint: bytes
    label: str
    tenant: str
    key: bytes
    parent: bytes
    first_block: int
    blocks: int
    prefix_tokens: int
    tier_blocks: Mapping[str, int]
    tier_bytes: Mapping[str, int]
    hits: int
    age_s: float
    idle_s: float
    retention: Retention = DEFAULT_RETENTION
    pinned_blocks: int = 0
    leases: int = 0
    children: int = 0
    below_blocks: int = 0
    tokens: bytes = b""


@dataclass(frozen=True, slots=True)
class Listing:
    """total: runs that were looked at. partial: there are more than can be looked at at once."""

    prefixes: tuple[PrefixInfo, ...]
    total: int
    partial: bool


class Prefixes:
    """spaces: the store's live table of namespaces."""

    def __init__(self, spaces: Mapping[bytes, Residents], depot: Depot, clock: Callable[[], float]) -> None:
        self._spaces = spaces
        self._depot = depot
        self._clock = clock

    async def list(
        self,
        *,
        fingerprint: bytes = b"",
        tenant: str = "",
        key: bytes = b"",
        children: bool = False,
        sort: str = "hits",
        limit: int = DEFAULT_LIMIT,
        tokens: int = 0,
        sees: Sees = everything,
    ) -> Listing:
        """See PrefixesRequest. Yields to the loop as often as needed for others not to wait."""
        return Listing((), 0, False)
