"""Least recently used."""

from collections.abc import Sequence

import numpy as np

from .columns import Columns
from .leafheap import LeafHeap
from .policy import RUN, LeafView, Numbers, leading


class Lru:
    """Least recently used tail first; a run that one request used leaves from its end. 8 bytes a block."""

    def __init__(self) -> None:
        self._clock = 0

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        columns.add("lru.rank", np.int64, None)
        if self._clock:
            raise ValueError("an eviction policy serves one index")
        self._clock = 1
        self._leaves, self._columns = leaves, columns
        self._heap = LeafHeap(leaves, self._rank)

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        self.touched(blocks)

    def touched(self, blocks: Numbers) -> None:
        self._clock += 1
        self._columns["lru.rank"][blocks] = self._clock

    def renewed(self, blocks: Numbers) -> None:
        self.touched(blocks)

    def retained(self, blocks: Numbers) -> None:
        """Nothing to do: retention is `Retained`'s business."""

    def offer(self, leaf: int) -> None:
        tail = self._leaves.tail(leaf)
        if tail >= 0:
            self._heap.offer(leaf, tail)

    def victim(self, limit: int) -> tuple[int, int]:
        leaf, _, rank = self._heap.front()
        if leaf < 0 or limit == 1:
            return leaf, 1
        tips = self._leaves.tips(leaf, min(limit, RUN))
        if len(tips) == 1:
            return leaf, 1
        return leaf, leading(self._columns["lru.rank"][tips] == rank)

    def evicted(self, blocks: Sequence[int]) -> None:
        """Nothing to do: ranks die with their blocks."""

    def dropped(self, blocks: Numbers) -> None:
        """Nothing to do."""

    def check(self, leaves: set[int]) -> None:
        for leaf in leaves:
            assert self._heap.holds(leaf, self._leaves.tail(leaf)), f"leaf {leaf} would be found too late"

    def _rank(self, tail: int) -> int:
        return self._columns["lru.rank"].item(tail)
