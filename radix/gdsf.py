"""GreedyDual-Size-Frequency: uses times worth, aged by what has been evicted."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .leafheap import LeafHeap
from .policy import RUN, LeafView, Numbers, leading

_SCALE = 1 << 20  # ranks are integers: steps of a millionth of a first block's worth
_MOST_STEPS = float(1 << 50)
_ORDINALS = np.array([0, *(1 << n for n in range(21))])  # where the cost is asked for; linear in between
_ASK_AGAIN = 4096  # blocks placed until it is asked anew: what computing costs is learned meanwhile


class Gdsf:
    """GreedyDual-Size-Frequency (Cherkasova, "Improving WWW proxies performance with GreedyDual-Size-Frequency caching
    policy", 1998), leaf first. rank = age + uses * worth: age is the rank of the latest victim, uses count from the
    insertion, and worth is seconds saved per byte. All blocks of one index have one size, so it is `cost(ordinal)`, the
    seconds that computing that block of a prompt takes, in units of `cost(0)`; 1 while that is 0, not known. Deep
    blocks attend to more and are worth more, but go before those above them all the same. 12 bytes a block."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self._cost = cost
        self._worth = np.ones(len(_ORDINALS))
        self._asked = _ASK_AGAIN
        self._age = -1

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        columns.add("gdsf.rank", np.int64, 0)
        columns.add("gdsf.uses", np.uint32, 0)
        if self._age >= 0:
            raise ValueError("an eviction policy serves one index")
        self._age = 0
        self._leaves, self._columns = leaves, columns
        self._heap = LeafHeap(leaves, self._rank)

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        self.touched(blocks)

    def touched(self, blocks: Numbers) -> None:
        self._columns["gdsf.uses"][blocks] += 1
        self.renewed(blocks)

    def renewed(self, blocks: Numbers) -> None:
        worth = np.interp(self._columns["depth"][blocks], _ORDINALS, self._worths(len(blocks)))
        steps = np.minimum(self._columns["gdsf.uses"][blocks] * worth * _SCALE, _MOST_STEPS).astype(np.int64)
        ranks = self._columns["gdsf.rank"]
        ranks[blocks] = np.maximum(ranks[blocks], self._age + steps)  # never down, though worth may fall

    def retained(self, blocks: Numbers) -> None:
        """Nothing to do: retention is `Retained`'s business."""

    def offer(self, leaf: int) -> None:
        tail = self._leaves.tail(leaf)
        if tail >= 0:
            self._heap.offer(leaf, tail)

    def victim(self, limit: int) -> tuple[int, int]:
        leaf, _, rank = self._heap.front()
        if leaf < 0:
            return leaf, 1
        self._age = max(self._age, rank)
        tips = self._leaves.tips(leaf, min(limit, RUN))
        if len(tips) == 1:
            return leaf, 1
        return leaf, leading(self._columns["gdsf.rank"][tips] <= rank)

    def evicted(self, blocks: Sequence[int]) -> None:
        """Nothing to do: ranks die with their blocks."""

    def dropped(self, blocks: Numbers) -> None:
        """Nothing to do."""

    def check(self, leaves: set[int]) -> None:
        for leaf in leaves:
            assert self._heap.holds(leaf, self._leaves.tail(leaf)), f"leaf {leaf} would be found too late"

    def _rank(self, tail: int) -> int:
        return self._columns["gdsf.rank"].item(tail)

    def _worths(self, placed: int) -> NDArray[Any]:
        """Worth at each of _ORDINALS."""
        self._asked += placed
        if self._asked >= _ASK_AGAIN:
            self._asked = 0
            costs = np.array([self._cost(int(ordinal)) for ordinal in _ORDINALS])
            self._worth = np.maximum(costs, 0.0) / costs[0] if costs[0] > 0 else np.ones(len(costs))
        return self._worth
