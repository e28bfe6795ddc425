"""Replicas as an order of eviction: a block that another node has, too, is worth less here than a last copy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .leafheap import LeafHeap
from .policy import RUN, EvictionPolicy, LeafView, Numbers, leading
from .retention import DEFAULT_PRIORITY

AGEING = 8.0
"""A replica's idle time counts so many times."""


def effective_use(columns: Columns, block: int, now: float) -> float:
    """When a block was used last; of a replica, as if its idle time had been AGEING times as long."""
    used = float(columns["last_use"][block])
    return now - AGEING * (now - used) if _is_replica(columns, block) else used


def _is_replica(columns: Columns, block: int) -> bool:
    """Whether it is one, and nobody wants it kept for longer."""
    if not columns["ret.origin"].item(block) or columns["ret.pinned"].item(block):
        return False
    return columns["ret.priority"].item(block) <= DEFAULT_PRIORITY


class Replicated:
    """Wraps a policy. A replica is a block whose column `ret.origin` is not 0, as `PrefixIndex.retain` wrote it.

    What is lost with a last copy is its computation, with a replica only the time to fetch it again, which is about
    AGEING times less. What is lost in a second is that over the time between uses, which the idle time stands for. So
    the replica unused for longest goes before the block that the policy below names if AGEING times its idle time is
    more than that block's: replicas and last copies that are as old leave in this order, and yet a replica that is
    read all the time is not fetched anew each time, only because everything else here is a last copy.

    What has expired or has a low priority still goes before any replica, and a replica that is pinned or has a high
    priority has no less of a claim than a last copy.

    Nothing at all while nothing is a replica; then one more heap, by last use. 2 bytes a block.
    """

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._any = False

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        self._leaves, self._columns = leaves, columns
        self._policy.bind(leaves, columns)
        self._heap = LeafHeap(self, self._last_use_us)

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        self._policy.inserted(blocks, parent, run, extras)

    def touched(self, blocks: Numbers) -> None:
        self._policy.touched(blocks)

    def renewed(self, blocks: Numbers) -> None:
        self._policy.renewed(blocks)

    def retained(self, blocks: Numbers) -> None:
        self._any = self._any or bool(self._columns["ret.origin"][blocks].any())
        self._policy.retained(blocks)

    def offer(self, leaf: int) -> None:
        self._policy.offer(leaf)
        if self._any and (tail := self.tail(leaf)) >= 0:
            self._heap.offer(leaf, tail)

    def victim(self, limit: int) -> tuple[int, int]:
        leaf, count = self._policy.victim(limit)
        if not self._any or leaf < 0:
            return leaf, count
        replica, tail, _ = self._heap.front()
        named, now = self._leaves.tail(leaf), self._leaves.now()
        if replica < 0 or self._goes_first(named, now):
            return leaf, count
        if effective_use(self._columns, tail, now) > effective_use(self._columns, named, now):
            return leaf, count
        tips = self._leaves.tips(replica, min(limit, RUN))
        return replica, leading(self._alike(tail, tips))

    def evicted(self, blocks: Sequence[int]) -> None:
        self._policy.evicted(blocks)

    def dropped(self, blocks: Numbers) -> None:
        self._policy.dropped(blocks)

    def check(self, leaves: set[int]) -> None:
        self._policy.check(leaves)
        for leaf in leaves:
            if (tail := self.tail(leaf)) >= 0:
                assert self._any, "a replica that the policy was not told of"
                assert self._heap.holds(leaf, tail), f"replica {leaf} would be found too late"

    def tail(self, leaf: int) -> int:
        """For the heap: the tail, if it is a replica."""
        tail = self._leaves.tail(leaf)
        return tail if tail >= 0 and _is_replica(self._columns, tail) else -1

    def _goes_first(self, tail: int, now: float) -> bool:
        """Whether retention lets that one leave before anything else."""
        columns = self._columns
        ttl = columns["ret.ttl"].item(tail)
        if ttl > 0 and columns["last_use"].item(tail) + ttl <= now:
            return True
        return columns["ret.priority"].item(tail) < DEFAULT_PRIORITY and not columns["ret.pinned"].item(tail)

    def _alike(self, tail: int, blocks: Numbers) -> NDArray[np.bool_]:
        """Which blocks are replicas that go with `tail`, which is one."""
        columns = self._columns
        alike = (columns["ret.origin"][blocks] > 0) & ~columns["ret.pinned"][blocks]
        for name in ("ret.priority", "last_use"):
            alike &= columns[name][blocks] == columns[name][tail]
        return alike

    def _last_use_us(self, tail: int) -> int:
        return int(1e6 * self._columns["last_use"].item(tail))
