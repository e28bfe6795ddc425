"""Ghosts: what became of blocks that are not here any more, so that a miss has a reason. Fixed memory.

A block is named here by a chained xxh3-64 of its tokens (`trace`), seeded by its namespace: good enough to explain a
miss, never used to serve a byte. One table for all tiers, so that a ghost says which one its block left last. It is
direct-mapped: a newer entry simply takes an older one's place.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

DEFAULT_ENTRIES = 1 << 18
ENTRY_BYTES = 17
_REASONS = ("", "evicted", "corrupt", "cleared")
_REASON_BITS = 2  # of an entry's `why`; the tier's number has the others


def seed_of(fingerprint: bytes) -> int:
    """The trace above the first block of a namespace."""
    return int.from_bytes(fingerprint[:8], "little")


def traces(seed: int, tokens: bytes, block_bytes: int, start: int, stop: int) -> list[int]:
    """Traces of blocks start..stop-1, given the trace `seed` of the block before; about 0.3 us each."""
    found: list[int] = []
    for ordinal in range(start, stop):
        seed = xxhash.xxh3_64_intdigest(tokens[ordinal * block_bytes : (ordinal + 1) * block_bytes], seed)
        found.append(seed)
    return found


class Ghost(NamedTuple):
    """reason: "evicted", "corrupt" or "cleared". tier: which one the block left last, gone_s: how long ago, kept_s: and
    how long it had been there."""

    reason: str
    tier: str
    gone_s: float
    kept_s: float


class Ghosts:
    """Why blocks left, by trace. entries: a power of two, ENTRY_BYTES each, taken at once. clock: in seconds."""

    def __init__(self, entries: int = DEFAULT_ENTRIES, clock: Callable[[], float] = time.monotonic) -> None:
        if entries < 1 or entries & (entries - 1):
            raise ValueError(f"entries must be a power of two, not {entries}")
        self._clock = clock
        self._began = clock()  # times count from here, and are within a second for half a year
        self._mask = entries - 1
        self._traces: NDArray[np.uint64] = np.zeros(entries, dtype=np.uint64)
        self._whys: NDArray[np.uint8] = np.zeros(entries, dtype=np.uint8)
        self._left: NDArray[np.float32] = np.zeros(entries, dtype=np.float32)
        self._kept: NDArray[np.float32] = np.zeros(entries, dtype=np.float32)
        self._tiers: list[str] = []

    def add(self, gone: NDArray[np.uint64], reason: str, tier: str, kept_s: NDArray[np.float64]) -> None:
        """The blocks of these traces have left a tier, where they had been for so long."""
        places = (gone & np.uint64(self._mask)).astype(np.intp)
        self._traces[places] = gone
        self._whys[places] = _REASONS.index(reason) | self._number(tier) << _REASON_BITS
        self._left[places] = self._clock() - self._began
        self._kept[places] = kept_s

    def of(self, trace: int) -> Ghost | None:
        """What is remembered of a block; None = nothing (it may never have been here)."""
        place = trace & self._mask
        why = self._whys.item(place)
        if not why or self._traces.item(place) != trace:
            return None
        gone_s = max(self._clock() - self._began - self._left.item(place), 0.0)
        reason, tier = _REASONS[why & (1 << _REASON_BITS) - 1], self._tiers[why >> _REASON_BITS]
        return Ghost(reason, tier, gone_s, self._kept.item(place))

    def _number(self, tier: str) -> int:
        if tier not in self._tiers:
            assert len(self._tiers) < 1 << 8 - _REASON_BITS, "more tiers than an entry can name"
            self._tiers.append(tier)
        return self._tiers.index(tier)
