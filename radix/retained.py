"""Retention as an order of eviction: what was asked for by `PrefixIndex.retain`, on top of any policy."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .leafheap import LeafHeap
from .policy import RUN, EvictionPolicy, LeafView, Numbers, leading
from .retention import DEFAULT_PRIORITY

_STEP = 13  # points of priority above the usual that buy one more chance: 100 buys four
_ROUNDS = 256  # leaves that may be passed over for one victim
_PRIORITY_SHIFT = 52  # above microseconds


class Retained:
    """Wraps a policy and obeys retention, as advice: never so that nothing can be evicted. In this order leave

    1. what has expired: not used for its TTL, pinned or not; a use starts the TTL anew;
    2. priority below 50: the lowest first, then the longest unused;
    3. all others, in the order of the policy below. But one with a priority above 50 is passed over, as if it had just
       been used, once for each 13 points begun: it stays a bounded number of rounds longer, and a use gives all its
       chances back. And a pinned one is set aside;
    4. what was set aside, the longest unused first.

    Pins may keep `pin_share` of all blocks. While more are marked, what was set aside goes before 3, and no pinned
    block is spared. What lies above a spared block stays with it: a tree is evicted from its tips.

    A TTL costs nothing until a victim is asked for: leaves with one wait in a heap by deadline. Memory 2 bytes a block.
    Victim: O(log leaves) amortised, and at most 256 leaves passed over. Nothing at all while nobody retained anything.
    """

    def __init__(self, policy: EvictionPolicy, pin_share: float = 0.25) -> None:
        if not 0 <= pin_share <= 1:
            raise ValueError(f"pin_share is a share between 0 and 1, not {pin_share}")
        self._policy = policy
        self._pin_share = pin_share
        self._forced = -1  # a tail that goes although it should be spared: too many were passed over for it

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        columns.add("retained.chances", np.uint8, 0)
        columns.add("retained.aside", np.bool_, False)
        self._leaves, self._columns = leaves, columns
        self._rest = _Rest(leaves, self._is_rest, self._are_rest)
        self._policy.bind(self._rest, columns)
        self._expiring = LeafHeap(_Part(leaves, self._has_ttl), self._deadline_us)
        self._early = LeafHeap(_Part(leaves, self._is_early), self._worth)
        self._aside = LeafHeap(_Part(leaves, self._is_aside), self._last_use_us)

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        self._policy.inserted(blocks, parent, run, extras)

    def touched(self, blocks: Numbers) -> None:
        self._policy.touched(blocks)
        if not self._rest.all:
            self._give_chances(blocks)

    def renewed(self, blocks: Numbers) -> None:
        self._policy.renewed(blocks)

    def retained(self, blocks: Numbers) -> None:
        if self._rest.all and self._are_plain(blocks):
            return
        self._rest.all = False
        self._give_chances(blocks)
        self._columns["retained.aside"][blocks] = False
        self._policy.retained(blocks)

    def offer(self, leaf: int) -> None:
        if self._rest.all:
            self._policy.offer(leaf)
            return
        tail = self._leaves.tail(leaf)
        if tail < 0:
            return
        if self._has_ttl(tail):
            self._expiring.offer(leaf, tail)
        if self._is_early(tail):
            self._early.offer(leaf, tail)
        elif self._is_aside(tail):
            self._aside.offer(leaf, tail)
        else:
            self._policy.offer(leaf)

    def victim(self, limit: int) -> tuple[int, int]:
        if self._rest.all:
            return self._policy.victim(limit)
        leaf, tail, _ = self._expiring.front()
        if leaf >= 0 and self._deadline_us(tail) <= 1e6 * self._leaves.now():
            tips = self._leaves.tips(leaf, min(limit, RUN))
            return leaf, leading(self._overdue(tips))
        leaf, tail, _ = self._early.front()
        if leaf >= 0:
            return leaf, leading(self._like(tail, self._leaves.tips(leaf, min(limit, RUN))))
        spare = self._leaves.pinned <= self._pin_share * len(self._leaves)
        leaf, count = self._ordinary(limit, spare) if spare or self._aside.front()[0] < 0 else (-1, 0)
        return (leaf, count) if leaf >= 0 else (self._aside.front()[0], 1)

    def evicted(self, blocks: Sequence[int]) -> None:
        self._forced = -1
        self._policy.evicted(blocks)

    def dropped(self, blocks: Numbers) -> None:
        self._forced = -1
        self._policy.dropped(blocks)

    def check(self, leaves: set[int]) -> None:
        rest = set[int]()
        for leaf in leaves:
            tail = self._leaves.tail(leaf)
            if self._has_ttl(tail):
                assert self._expiring.holds(leaf, tail), f"leaf {leaf} would expire too late"
            if self._is_early(tail):
                assert self._early.holds(leaf, tail), f"leaf {leaf} of low priority would be found too late"
            elif self._is_aside(tail):
                assert self._columns["ret.pinned"].item(tail), f"leaf {leaf} is set aside without a pin"
                assert self._aside.holds(leaf, tail), f"pinned leaf {leaf} would be found too late"
            else:
                rest.add(leaf)
        self._policy.check(rest)

    def _ordinary(self, limit: int, spare_pinned: bool) -> tuple[int, int]:
        """The first that the policy below names and that is not spared."""
        chances, aside = self._columns["retained.chances"], self._columns["retained.aside"]
        for passed in range(_ROUNDS + 1):
            leaf, count = self._policy.victim(RUN)
            if leaf < 0:
                break
            tips = self._rest.tips(leaf, count)
            tail = int(tips[0])
            held = self._columns["ret.pinned"][tips] & spare_pinned
            lucky = (chances[tips] > 0) & ~held
            free = leading(~(held | lucky))
            if free:
                return leaf, min(free, limit)
            if passed == _ROUNDS or tail == self._forced:
                self._forced = tail
                return leaf, 1
            if held[0]:
                aside[tail] = True
                self._aside.offer(leaf, tail)
            else:
                spared = tips[: leading(lucky)]
                chances[spared] -= 1
                self._policy.renewed(spared)
        return -1, 0

    def _give_chances(self, blocks: Numbers) -> None:
        above = self._columns["ret.priority"][blocks].astype(np.int16) - DEFAULT_PRIORITY
        self._columns["retained.chances"][blocks] = np.maximum(-(-above // _STEP), 0)

    def _has_ttl(self, tail: int) -> bool:
        return self._columns["ret.ttl"].item(tail) > 0

    def _is_early(self, tail: int) -> bool:
        low = self._columns["ret.priority"].item(tail) < DEFAULT_PRIORITY
        return low and not self._columns["ret.pinned"].item(tail)

    def _is_aside(self, tail: int) -> bool:
        return self._columns["retained.aside"].item(tail)

    def _is_rest(self, tail: int) -> bool:
        return not (self._is_early(tail) or self._is_aside(tail))

    def _are_rest(self, blocks: NDArray[np.intp]) -> NDArray[np.bool_]:
        early = (self._columns["ret.priority"][blocks] < DEFAULT_PRIORITY) & ~self._columns["ret.pinned"][blocks]
        return ~(early | self._columns["retained.aside"][blocks])

    def _are_plain(self, blocks: Numbers) -> bool:
        """Whether nothing out of the usual is asked for any of them."""
        usual = self._columns["ret.priority"][blocks] == DEFAULT_PRIORITY
        usual &= (self._columns["ret.ttl"][blocks] == 0) & ~self._columns["ret.pinned"][blocks]
        return bool(usual.all())

    def _last_use_us(self, tail: int) -> int:
        return int(1e6 * self._columns["last_use"].item(tail))

    def _deadline_us(self, tail: int) -> int:
        return int(1e6 * (self._columns["last_use"].item(tail) + self._columns["ret.ttl"].item(tail)))

    def _worth(self, tail: int) -> int:
        return self._columns["ret.priority"].item(tail) << _PRIORITY_SHIFT | self._last_use_us(tail)

    def _overdue(self, blocks: Numbers) -> NDArray[np.bool_]:
        ttl, used = self._columns["ret.ttl"][blocks].astype(np.float64), self._columns["last_use"][blocks]
        return (ttl > 0) & ((1e6 * (used + ttl)).astype(np.int64) <= 1e6 * self._leaves.now())

    def _like(self, tail: int, blocks: Numbers) -> NDArray[np.bool_]:
        """Which blocks are as early as `tail`, which is."""
        same = ~self._columns["ret.pinned"][blocks]
        for name in ("ret.priority", "last_use"):
            same &= self._columns[name][blocks] == self._columns[name][tail]
        return same


class _Part:
    """The tails for which `mine` holds."""

    def __init__(self, leaves: LeafView, mine: Callable[[int], bool]) -> None:
        self._leaves, self._mine = leaves, mine

    def tail(self, leaf: int) -> int:
        tail = self._leaves.tail(leaf)
        return tail if tail >= 0 and self._mine(tail) else -1


class _Rest:
    """A view of the blocks for which `mine` holds, as the LeafView of the policy below."""

    def __init__(
        self, leaves: LeafView, mine: Callable[[int], bool], all_mine: Callable[[NDArray[np.intp]], NDArray[np.bool_]]
    ) -> None:
        self._leaves, self._mine, self._all_mine = leaves, mine, all_mine
        self.all = True
        """Nothing is retained yet: all are taken to be mine, without asking."""

    def __len__(self) -> int:
        return len(self._leaves)

    @property
    def pinned(self) -> int:
        return self._leaves.pinned

    def now(self) -> float:
        return self._leaves.now()

    def tail(self, leaf: int) -> int:
        tail = self._leaves.tail(leaf)
        return tail if tail < 0 or self.all or self._mine(tail) else -1

    def tips(self, leaf: int, limit: int) -> Numbers:
        tips = self._leaves.tips(leaf, limit)
        return tips if self.all else tips[: leading(self._all_mine(tips.astype(np.intp)))]
