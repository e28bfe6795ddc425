"""Retention: what was asked for about keeping each block. Columns only; what it does to eviction is `Retained`'s."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import Columns

DEFAULT_PRIORITY = 50
MAX_PRIORITY = 100
Numbers = NDArray[np.int32]


class Retentions(NamedTuple):
    """What was asked for some blocks, row by row; copies."""

    priority: NDArray[np.uint8]
    """0, the first to leave, to 100; 50 if nobody said otherwise."""
    ttl_s: NDArray[np.float32]
    """Leaves first once not used for so many seconds; 0 = no such limit."""
    pinned: NDArray[np.bool_]
    """Leaves last, within a budget."""

    def rows(self, first: int, end: int) -> "Retentions":
        """Of rows first .. end-1."""
        return Retentions(self.priority[first:end], self.ttl_s[first:end], self.pinned[first:end])

    @property
    def usual(self) -> bool:
        """Whether nothing was asked for any of them."""
        return bool(((self.priority == DEFAULT_PRIORITY) & (self.ttl_s == 0) & ~self.pinned).all())


class RetentionColumns:
    """Owns the columns `ret.priority`, `ret.ttl` and `ret.pinned`, 6 bytes a block, and the count of pinned blocks."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        columns.add("ret.priority", np.uint8, DEFAULT_PRIORITY)
        columns.add("ret.ttl", np.float32, 0.0)
        columns.add("ret.pinned", np.bool_, False)
        columns.add("ret.origin", np.uint16, 0)  # who else has it; the numbers are the owner's, 0 = nobody
        self.pinned = 0
        """Blocks of the tree that are marked pinned."""

    def write(
        self,
        blocks: Numbers,
        priority: int | NDArray[Any] | None,
        ttl_s: float | NDArray[Any] | None,
        pinned: bool | NDArray[Any] | None,
        origin: int | None = None,
    ) -> None:
        """Blocks in the tree, each named once. ValueError, and no change, for what is out of range."""
        if origin is not None:
            self._columns["ret.origin"][blocks] = origin
        if priority is not None and not (np.min(priority) >= 0 and np.max(priority) <= MAX_PRIORITY):
            raise ValueError(f"a priority is between 0 and {MAX_PRIORITY}, not {priority}")
        if ttl_s is not None and not (np.min(ttl_s) >= 0 and math.isfinite(np.max(ttl_s))):
            raise ValueError(f"a TTL is 0 (none) or finite seconds, not {ttl_s}")
        if priority is not None:
            self._columns["ret.priority"][blocks] = priority
        if ttl_s is not None:
            self._columns["ret.ttl"][blocks] = ttl_s
        if pinned is not None:
            marks = self._columns["ret.pinned"]
            self.pinned -= int(np.count_nonzero(marks[blocks]))
            marks[blocks] = pinned
            self.pinned += int(np.count_nonzero(marks[blocks]))

    def of(self, blocks: Sequence[int] | Numbers) -> Retentions:
        numbers = np.asarray(blocks, dtype=np.int32)
        return Retentions(*(self._columns[name][numbers] for name in ("ret.priority", "ret.ttl", "ret.pinned")))

    def left(self, blocks: Sequence[int] | Numbers) -> None:
        """These blocks have left the tree."""
        if self.pinned:
            self.pinned -= int(np.count_nonzero(self._columns["ret.pinned"][np.asarray(blocks, dtype=np.int32)]))

    def check(self, live: set[int]) -> None:
        """AssertionError unless a recount agrees."""
        numbers = np.fromiter(live, dtype=np.int32, count=len(live))
        assert self.pinned == int(np.count_nonzero(self._columns["ret.pinned"][numbers])), "pins miscounted"
