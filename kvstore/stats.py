"""What a store says about itself: the mutable counters, and the frozen picture that status and metrics read.

Counters are in tokens or blocks, never ratios; they only grow.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


def _counter() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class Counters:
    """Counted where things happen.

    hit_tokens by tier: tokens leased to readers. miss_tokens by reason: tokens of full blocks asked for and not
    found. evictions by reason ("capacity", "slab": its slab went to another size, "corrupt", "cleared"), in blocks,
    and evictions_reused: those of them that had been read at least once. dropped_saves by reason, in blocks.
    duplicate_blocks: committed after someone else had committed the same.
    """

    hit_tokens: Counter[str] = field(default_factory=_counter)
    miss_tokens: Counter[str] = field(default_factory=_counter)
    evictions: Counter[str] = field(default_factory=_counter)
    evictions_reused: Counter[str] = field(default_factory=_counter)
    dropped_saves: Counter[str] = field(default_factory=_counter)
    committed_blocks: int = 0
    duplicate_blocks: int = 0
    checksum_failures: int = 0
    acquires: int = 0
    sessions_opened: int = 0


@dataclass(frozen=True, slots=True)
class CounterStats:
    """Counters at one moment; fields as in Counters."""

    hit_tokens: Mapping[str, int]
    miss_tokens: Mapping[str, int]
    evictions: Mapping[str, int]
    evictions_reused: Mapping[str, int]
    dropped_saves: Mapping[str, int]
    committed_blocks: int
    duplicate_blocks: int
    checksum_failures: int
    acquires: int
    sessions_opened: int

    @classmethod
    def of(cls, counters: Counters) -> "CounterStats":
        return cls(
            hit_tokens=dict(counters.hit_tokens),
            miss_tokens=dict(counters.miss_tokens),
            evictions=dict(counters.evictions),
            evictions_reused=dict(counters.evictions_reused),
            dropped_saves=dict(counters.dropped_saves),
            committed_blocks=counters.committed_blocks,
            duplicate_blocks=counters.duplicate_blocks,
            checksum_failures=counters.checksum_failures,
            acquires=counters.acquires,
            sessions_opened=counters.sessions_opened,
        )


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier. used_bytes: slots that hold or await a block; leased_bytes: those of them that may not be evicted
    now (read or written, or above a block that is); reserved_bytes: those being written."""

    name: str
    capacity_bytes: int
    used_bytes: int
    leased_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """One namespace. bytes: of slots its visible blocks take."""

    fingerprint: bytes
    label: str
    slot_bytes: int
    blocks: int
    bytes: int
    hit_tokens: int
    miss_tokens: int
    sessions: int


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
    """A store at one moment."""

    tiers: tuple[TierStats, ...]
    namespaces: tuple[NamespaceStats, ...]
    sessions: tuple[SessionStats, ...]
    counters: CounterStats
