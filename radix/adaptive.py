"""The default eviction policy: least recently used, with a credit for earlier hits that has to prove itself."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .leafheap import LeafHeap
from .names import Memory, name_run
from .policy import RUN, LeafView, Numbers, leading

_CREDITS = (0.0, 0.5, 2.0)  # turnovers a hit is worth; the first is plain LRU
_MOST_HITS = 3
_HITS = 3  # of a state: the bits that count them
_NO_BOUNDS = np.full((len(_CREDITS), _MOST_HITS + 1), np.inf)
_MARGIN, _FLOOR = 1.02, 16.0  # how much more another credit must have found: a ratio, and blocks
_HALF_LIVES = np.array([[16.0], [0.5]])  # turnovers after which a block that was found counts half: over all, lately
_REVIEWS = 8  # a turnover
_LEAST_REVIEWED = 256  # uses between two reviews, however small the cache
_SAMPLE = 512  # resident blocks looked at in a review
_MOST_LEAVING = 4096


class Adaptive:
    """Evicts the leaf whose tail has the lowest rank = time of last use + credit * turnover * hits.

    Time counts blocks used, a turnover is as many uses as the cache has blocks, hits are those a block ever had, three
    at most: blocks that left are remembered by name. Credit 0 is LRU; 1/2 and 2 keep what proved itself through scans
    and loops, and lose to LRU where yesterday's favourites are dead. Which one is right depends on the traffic and the
    capacity, so all are judged all the time: a block used now would have been found under a credit if, ranked by it,
    it was among the best n of all blocks known, resident or remembered, n being how many are resident. Each review
    finds that n-th rank, for each credit, in a sample; each use counts as found or not, one of 16 turnovers ago half as
    much. The credit that found most orders evictions from the next victim on, if it beats the present one by a margin;
    but only while it is not behind LRU in the last half turnover, in which favourites may have died.

    Costs: touch O(blocks) in numpy, insertion 0.4 us a block for names, victim O(log leaves) in four heaps, review
    O(1). Memory 16 bytes a block, and 32 to 64 for what is remembered.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._size = 0
        self._memory = Memory()
        self._choice = 0
        self._credits = np.array(_CREDITS)
        self._bounds = _NO_BOUNDS  # ages up to which blocks would be held: a row a credit, a column a number of hits
        self._found = np.zeros((len(_HALF_LIVES), len(_CREDITS)))
        self._turnover = 1
        self._reviewed = 0
        self._tells = False  # whether anything has ever been evicted: until then every credit would hold every block
        self._leaving = array("i")  # evicted and not yet remembered: one by one that would take most of an eviction

    @property
    def credit(self) -> float:
        """Turnovers a hit is worth at present; 0 is plain LRU."""
        return _CREDITS[self._choice]

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        columns.add("adaptive.state", np.int64, None)  # time of last use << 2 | hits; -1: not in the tree
        columns.add("adaptive.name", np.uint64, None)
        if self._clock:
            raise ValueError("an eviction policy serves one index")
        self._clock = 1
        self._leaves, self._columns = leaves, columns
        self._heaps = [LeafHeap(leaves, self._used) for _ in range(_MOST_HITS + 1)]

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        self._settle()  # while the numbers still mean what left
        above = self._columns["adaptive.name"].item(parent) if parent >= 0 else 0
        names = name_run(above, run, len(blocks), extras)
        known, hits, times = self._memory.take(names)
        self._clock += len(blocks)
        states = np.full(len(blocks), self._clock << 2)
        if len(hits):
            self._judge(np.uint32(self._clock & 0xFFFFFFFF) - times, hits)
            states[known] |= np.minimum(hits + 1, _MOST_HITS)
        at = blocks.astype(np.intp)
        self._columns["adaptive.state"][at] = states
        self._columns["adaptive.name"][at] = names
        self._size += len(blocks)
        self._memory.reserve(self._size)
        self._review()

    def touched(self, blocks: Numbers) -> None:
        at, column = blocks.astype(np.intp), self._columns["adaptive.state"]
        states = column[at]
        hits = states & _HITS
        self._clock += len(blocks)
        self._judge(self._clock - (states >> 2), hits)
        column[at] = np.minimum(hits + 1, _MOST_HITS) | self._clock << 2
        self._review()

    def renewed(self, blocks: Numbers) -> None:
        self._clock += len(blocks)
        column = self._columns["adaptive.state"]
        column[blocks] = column[blocks] & _HITS | self._clock << 2

    def retained(self, blocks: Numbers) -> None:
        """Nothing to do: retention is `Retained`'s business."""

    def offer(self, leaf: int) -> None:
        tail = self._leaves.tail(leaf)
        if tail >= 0:
            self._heaps[self._hits(tail)].offer(leaf, tail)

    def victim(self, limit: int) -> tuple[int, int]:
        best, leaf, state = float("inf"), -1, 0
        worth = self.credit * self._turnover
        for each, heap in enumerate(self._heaps):
            if heap.lowest() + worth * each >= best:
                continue
            front, time = self._front(each)
            if front >= 0 and time + worth * each < best:
                best, leaf, state = time + worth * each, front, time << 2 | each
        if leaf < 0 or limit == 1:
            return leaf, 1
        tips = self._leaves.tips(leaf, min(limit, RUN))
        column = self._columns["adaptive.state"]
        if len(tips) == 1 or column.item(tips[1]) != state:
            return leaf, 1
        return leaf, leading(column[tips.astype(np.intp)] == state)

    def evicted(self, blocks: Sequence[int]) -> None:
        self._leaving.extend(blocks)
        self._tells = True
        if len(self._leaving) > _MOST_LEAVING:
            self._settle()

    def dropped(self, blocks: Numbers) -> None:
        self._columns["adaptive.state"][blocks] = -1
        self._size -= len(blocks)

    def _settle(self) -> None:
        """Remember what was evicted."""
        if not self._leaving:
            return
        numbers = np.array(self._leaving, dtype=np.intp)
        del self._leaving[:]
        column = self._columns["adaptive.state"]
        states = column[numbers]
        self._memory.add(self._columns["adaptive.name"][numbers], states & _HITS, states >> 2)
        column[numbers] = -1
        self._size -= len(numbers)

    def _hits(self, tail: int) -> int:
        return self._columns["adaptive.state"].item(tail) & _HITS

    def _used(self, tail: int) -> int:
        return self._columns["adaptive.state"].item(tail) >> 2

    def _front(self, hits: int) -> tuple[int, int]:
        """Leaf whose tail has so many hits and was used longest ago, and when."""
        heap = self._heaps[hits]
        while True:
            leaf, tail, used = heap.front()
            actual = self._hits(tail) if leaf >= 0 else hits
            if actual == hits:
                return leaf, used
            heap.drop_front()
            self._heaps[actual].offer(leaf, tail)

    def _judge(self, ages: NDArray[Any], hits: NDArray[Any]) -> None:
        """Blocks of that age and so many earlier hits are being used: under which credit would they have been held?"""
        if not self._tells:
            self._found += len(ages)
        else:
            self._found += [np.count_nonzero(ages <= bounds[hits]) for bounds in self._bounds]

    def _review(self) -> None:
        passed = self._clock - self._reviewed
        if passed * _REVIEWS < self._turnover or passed < _LEAST_REVIEWED or not self._tells:
            return
        self._settle()
        self._reviewed = self._clock
        self._turnover = max(1, self._size)
        step = max(1, self._columns.numbers // _SAMPLE)
        first = self._clock % step
        states = self._columns["adaptive.state"][: self._columns.numbers][first::step]
        states = states[states >= 0]
        hits, times = self._memory.sample(first, step)
        ages = np.concatenate([self._clock - (states >> 2), np.uint32(self._clock & 0xFFFFFFFF) - times])
        hits = np.concatenate([states & _HITS, hits])
        worths = self._credits * self._turnover
        if 0 < len(states) < len(ages):
            last = len(states) - 1
            lives = np.partition(ages - np.multiply.outer(worths, hits), last, axis=1)[:, last]
            self._bounds = lives[:, None] + np.multiply.outer(worths, np.arange(_MOST_HITS + 1))
        else:
            self._bounds = _NO_BOUNDS
        self._found *= 0.5 ** (passed / (_HALF_LIVES * self._turnover))
        overall, lately = self._found
        sound = lately >= lately[0]
        best = int(np.where(sound, overall, -1.0).argmax())
        if not sound[self._choice] or overall[best] > _MARGIN * overall[self._choice] + _FLOOR:
            self._choice = best

    def check(self, leaves: set[int]) -> None:
        self._settle()
        assert self._size == len(self._leaves), "blocks miscounted by the policy"
        for leaf in leaves:
            tail = self._leaves.tail(leaf)
            assert any(heap.holds(leaf, tail) for heap in self._heaps[: self._hits(tail) + 1]), (
                f"leaf {leaf} would be found late"
            )
