"""Ghosts: what became of blocks that are not here any more, so that a miss has a reason. Fixed memory.

A block is named here by a chained xxh3-64 of its tokens (`trace`), seeded by its namespace: good enough to explain a
miss, never used to serve a byte. The table is direct-mapped: a newer entry simply takes an older one's place.
"""

import numpy as np
import xxhash
from numpy.typing import NDArray

DEFAULT_ENTRIES = 1 << 18
_REASONS = ("", "evicted", "corrupt", "cleared")


def traces(seed: int, tokens: bytes, block_bytes: int, start: int, stop: int) -> list[int]:
    """Traces of blocks start..stop-1, given the trace `seed` of the block before; about 0.3 us each."""
    found: list[int] = []
    for ordinal in range(start, stop):
        seed = xxhash.xxh3_64_intdigest(tokens[ordinal * block_bytes : (ordinal + 1) * block_bytes], seed)
        found.append(seed)
    return found


class Ghosts:
    """Why blocks left, by trace. entries: a power of two; nine bytes each."""

    def __init__(self, entries: int = DEFAULT_ENTRIES) -> None:
        if entries < 1 or entries & (entries - 1):
            raise ValueError(f"entries must be a power of two, not {entries}")
        self._mask = entries - 1
        self._traces: NDArray[np.uint64] = np.zeros(entries, dtype=np.uint64)
        self._reasons: NDArray[np.uint8] = np.zeros(entries, dtype=np.uint8)

    def add(self, gone: NDArray[np.uint64], reason: str) -> None:
        """Remember why the blocks of these traces left: "evicted", "corrupt" or "cleared"."""
        places = gone & np.uint64(self._mask)
        self._traces[places] = gone
        self._reasons[places] = _REASONS.index(reason)

    def reason(self, trace: int) -> str:
        """Why the block left, "" if it is not remembered (or was never here)."""
        place = trace & self._mask
        return _REASONS[int(self._reasons[place])] if int(self._traces[place]) == trace else ""
