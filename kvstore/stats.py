"""What a store says about itself: the mutable counters, and the frozen picture that status and metrics read.

Counters are in tokens or blocks, never ratios; they only grow.
"""

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .spread import RESIDENCE_BOUNDS_S, Spread
from .tenants.tenants import TenantStats
from .tiers.codec import CodecStats
from .tiers.nvme.types import DeviceStats


def _counter() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class Counters:
    """Counted where things happen.

    hit_tokens by tier: tokens leased to readers. miss_tokens by reason: tokens of full blocks asked for and not
    found. evictions by reason ("capacity", "quota": of its tenant, "slab": its slab went to another size, "corrupt",
    "cleared"), in blocks, and evictions_reused: those of them that had been read at least once. dropped_saves by
    reason, in blocks. duplicate_blocks: committed after someone else had committed the same. Between tiers, in blocks:
    promoted and demoted by the lower tier, dropped_demotions (not written below) and failed_loads by reason,
    tier_evictions by tier; prefetched_blocks "used" by a request, or "unused" when they left. read_bytes and
    written_bytes by lower tier. saved_s: seconds that computing what was leased would have taken, less what loading it
    took, by the cost model. inflight, of requests and what others were computing: marks made, broken ones (nothing came
    of them), waits by outcome ("loaded", "owner_gone", "too_slow", "cheaper_to_compute"), the seconds of all waits, and
    the tokens that came meanwhile. came_bytes and left_bytes by tier: of blocks that became available there, and that
    did not stay. residence: seconds that blocks which left had been in a tier, by tier and "reused" or "unused".
    """

    hit_tokens: Counter[str] = field(default_factory=_counter)
    miss_tokens: Counter[str] = field(default_factory=_counter)
    evictions: Counter[str] = field(default_factory=_counter)
    evictions_reused: Counter[str] = field(default_factory=_counter)
    dropped_saves: Counter[str] = field(default_factory=_counter)
    promoted_blocks: Counter[str] = field(default_factory=_counter)
    demoted_blocks: Counter[str] = field(default_factory=_counter)
    dropped_demotions: Counter[str] = field(default_factory=_counter)
    failed_loads: Counter[str] = field(default_factory=_counter)
    tier_evictions: Counter[str] = field(default_factory=_counter)
    prefetched_blocks: Counter[str] = field(default_factory=_counter)
    read_bytes: Counter[str] = field(default_factory=_counter)
    written_bytes: Counter[str] = field(default_factory=_counter)
    inflight_waits: Counter[str] = field(default_factory=_counter)
    came_bytes: Counter[str] = field(default_factory=_counter)
    left_bytes: Counter[str] = field(default_factory=_counter)
    residence: dict[tuple[str, str], Spread] = field(default_factory=dict[tuple[str, str], Spread])
    committed_blocks: int = 0
    duplicate_blocks: int = 0
    checksum_failures: int = 0
    acquires: int = 0
    sessions_opened: int = 0
    saved_s: float = 0.0
    inflight_marks: int = 0
    inflight_broken: int = 0
    inflight_tokens: int = 0
    inflight_wait_s: float = 0.0

    def left(self, tier: str, ages_s: NDArray[np.floating], reused: NDArray[np.bool_]) -> None:
        """Blocks have left a tier: how long each had been there, and whether a request had used it."""
        for use, chosen in (("reused", ages_s[reused]), ("unused", ages_s[~reused])):
            if len(chosen):
                self.residence.setdefault((tier, use), Spread(RESIDENCE_BOUNDS_S)).add_all(chosen)

    def copy(self) -> "Counters":
        """As they are now."""
        return deepcopy(self)


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier. used_bytes: slots that hold or await a block, or bytes on the devices; leased_bytes: those of them that
    may not be evicted now (read or written, or above a block that is); reserved_bytes: those being written;
    pinned_blocks: those marked pinned by request or operator, which is another thing. latency_s
    and bytes_per_s: of reading, as the cost model has them; 0 = not measured."""

    name: str
    capacity_bytes: int
    used_bytes: int
    leased_bytes: int
    reserved_bytes: int
    blocks: int = 0
    pinned_blocks: int = 0
    devices: tuple[DeviceStats, ...] = ()
    codec: CodecStats | None = None
    latency_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """One namespace. bytes: of slots its visible blocks take. tenant: whose it is, "" = the default one's."""

    fingerprint: bytes
    label: str
    slot_bytes: int
    blocks: int
    bytes: int
    hit_tokens: int
    miss_tokens: int
    sessions: int
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SessionStats:
    """One session. reserved_slots: reserved and not committed yet."""

    id: int
    client: str
    fingerprint: bytes
    read_leases: int
    reserved_slots: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store at one moment. latencies: seconds of transfers by tier and direction ("read", "write"). backlog_slots:
    reserved by engines and not committed; of backlog_limit_slots."""

    tiers: tuple[TierStats, ...]
    namespaces: tuple[NamespaceStats, ...]
    sessions: tuple[SessionStats, ...]
    counters: Counters
    tenants: tuple[TenantStats, ...] = ()
    latencies: Mapping[tuple[str, str], Spread] = field(default_factory=dict[tuple[str, str], Spread])
    backlog_slots: int = 0
    backlog_limit_slots: int = 0
