"""The default eviction policy: least recently used, with a credit for earlier hits that has to prove itself."""

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
_MARGIN, _FLOOR = 1.02, 16.0  # how much more another credit must have found: a ratio, and blocks
_HALF_LIVES = np.array([[16.0], [0.5]])  # turnovers after which a block that was found counts half: over all, lately
_REVIEWS = 8  # a turnover
_SAMPLE = 512  # resident blocks looked at in a review


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
    O(1). Memory 17 bytes a block, and 32 to 64 for what is remembered.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._size = 0
        self._memory = Memory()
        self._choice = 0
        self._credits = np.array(_CREDITS)
        self._lives = np.full(len(_CREDITS), np.inf)  # ages up to which blocks without hits would be held
        self._found = np.zeros((len(_HALF_LIVES), len(_CREDITS)))
        self._turnover = 1
        self._reviewed = 0

    @property
    def credit(self) -> float:
        """Turnovers a hit is worth at present; 0 is plain LRU."""
        return _CREDITS[self._choice]

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        columns.add("adaptive.used", np.int64, -1)  # -1: not in the tree
        columns.add("adaptive.hits", np.uint8, 0)
        columns.add("adaptive.name", np.uint64, None)
        if self._clock:
            raise ValueError("an eviction policy serves one index")
        self._clock = 1
        self._leaves, self._columns = leaves, columns
        self._heaps = [LeafHeap(leaves, self._rank) for _ in range(_MOST_HITS + 1)]

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        above = self._columns["adaptive.name"].item(parent) if parent >= 0 else 0
        names = name_run(above, run, len(blocks), extras)
        known, hits, times = self._memory.take(names)
        self._use(blocks)
        self._columns["adaptive.name"][blocks] = names
        self._size += len(blocks)
        if known.any():
            self._judge(np.uint32(self._clock & 0xFFFFFFFF) - times, hits)
            self._columns["adaptive.hits"][blocks[known]] = np.minimum(hits + 1, _MOST_HITS)
        self._memory.reserve(self._size)
        self._review()

    def touched(self, blocks: Numbers) -> None:
        used, hits = self._columns["adaptive.used"][blocks], self._columns["adaptive.hits"][blocks]
        self._use(blocks)
        self._judge(self._clock - used, hits)
        self._columns["adaptive.hits"][blocks] = np.minimum(hits + 1, _MOST_HITS)
        self._review()

    def renewed(self, blocks: Numbers) -> None:
        self._use(blocks)

    def retained(self, blocks: Numbers) -> None:
        """Nothing to do: retention is `Retained`'s business."""

    def offer(self, leaf: int) -> None:
        tail = self._leaves.tail(leaf)
        if tail >= 0:
            hits: int = self._columns["adaptive.hits"].item(tail)
            self._heaps[hits].offer(leaf, tail)

    def victim(self, limit: int) -> tuple[int, int]:
        best, leaf, used, hits = float("inf"), -1, 0, 0
        worth = self.credit * self._turnover
        for each in range(_MOST_HITS + 1):
            if self._heaps[each].lowest() + worth * each >= best:
                continue
            front, time = self._front(each)
            if front >= 0 and time + worth * each < best:
                best, leaf, used, hits = time + worth * each, front, time, each
        if leaf < 0 or limit == 1:
            return leaf, 1
        tips = self._leaves.tips(leaf, min(limit, RUN)).astype(np.intp)
        if len(tips) == 1:
            return leaf, 1
        return leaf, leading(
            (self._columns["adaptive.used"][tips] == used) & (self._columns["adaptive.hits"][tips] == hits)
        )

    def evicted(self, blocks: Sequence[int]) -> None:
        facts = [self._columns[f"adaptive.{name}"] for name in ("name", "hits", "used")]
        if len(blocks) == 1:
            self._memory.add_one(*(column.item(blocks[0]) for column in facts))
            facts[-1][blocks[0]] = -1
            self._size -= 1
            return
        numbers = np.array(blocks, dtype=np.intp)
        self._memory.add(*(column[numbers] for column in facts))
        self._gone(numbers)

    def dropped(self, blocks: Numbers) -> None:
        self._gone(blocks)

    def _gone(self, blocks: NDArray[Any]) -> None:
        self._columns["adaptive.used"][blocks] = -1
        self._size -= len(blocks)

    def _use(self, blocks: Numbers) -> None:
        self._clock += len(blocks)
        self._columns["adaptive.used"][blocks] = self._clock

    def _rank(self, tail: int) -> int:
        return self._columns["adaptive.used"].item(tail)

    def _front(self, hits: int) -> tuple[int, int]:
        """Leaf whose tail has so many hits and was used longest ago, and when."""
        heap = self._heaps[hits]
        while True:
            leaf, tail, used = heap.front()
            actual = self._columns["adaptive.hits"].item(tail) if leaf >= 0 else hits
            if actual == hits:
                return leaf, used
            heap.drop_front()
            self._heaps[actual].offer(leaf, tail)

    def _judge(self, ages: NDArray[Any], hits: NDArray[Any]) -> None:
        """Blocks of that age and so many earlier hits are being used: under which credit would they have been held?"""
        credit = np.multiply.outer(self._credits * self._turnover, hits)
        self._found += np.count_nonzero(ages - credit <= self._lives[:, None], axis=1)

    def _review(self) -> None:
        passed = self._clock - self._reviewed
        if passed * _REVIEWS < self._turnover or passed < 64:
            return
        self._reviewed = self._clock
        self._turnover = max(1, self._size)
        step = max(1, self._columns.numbers // _SAMPLE)
        first = self._clock % step
        used = self._columns["adaptive.used"][: self._columns.numbers][first::step]
        here = used >= 0
        hits, times = self._memory.sample(first, step)
        ages = np.concatenate([self._clock - used[here], np.uint32(self._clock & 0xFFFFFFFF) - times])
        hits = np.concatenate([self._columns["adaptive.hits"][: self._columns.numbers][first::step][here], hits])
        room = int(np.count_nonzero(here))
        if 0 < room < len(ages):
            by_rank = ages - np.multiply.outer(self._credits * self._turnover, hits)
            self._lives = np.partition(by_rank, room - 1, axis=1)[:, room - 1].copy()  # a view would keep it all
        else:
            self._lives = np.full(len(_CREDITS), np.inf)
        self._found *= 0.5 ** (passed / (_HALF_LIVES * self._turnover))
        overall, lately = self._found
        sound = lately >= lately[0]
        best = int(np.where(sound, overall, -1.0).argmax())
        if not sound[self._choice] or overall[best] > _MARGIN * overall[self._choice] + _FLOOR:
            self._choice = best

    def check(self, leaves: set[int]) -> None:
        assert self._size == len(self._leaves), "blocks miscounted by the policy"
        for leaf in leaves:
            tail = self._leaves.tail(leaf)
            hits = self._columns["adaptive.hits"].item(tail)
            assert any(heap.holds(leaf, tail) for heap in self._heaps[: hits + 1]), f"leaf {leaf} would be found late"
