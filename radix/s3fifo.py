"""S3-FIFO: a small queue for what is new, a main one for what proved itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .leafheap import LeafHeap
from .names import name_run
from .policy import RUN, LeafView, Numbers, leading

_SMALL, _MAIN = 0, 1


class S3Fifo:
    """S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023), leaf first.

    New blocks enter a small queue, which is evicted first while it holds `small_share` of all blocks or more; a block
    hit more than once there moves to the main queue instead of leaving. Main gives a block up to three more rounds, one
    per hit. Blocks that left from small are remembered as ghosts, as many as main is meant to hold, by a chained hash
    of their path (computed at insertion, 0.3 us a block), and one that comes back goes straight to main. So a scan of
    prompts used once flows through small and leaves the rest alone.

    Two departures from the paper: only tails of leaves are looked at, in queue order (what lies above them keeps its
    place and is looked at once it is a tail); and one victim costs at most `_ROUNDS` second chances, then the next in
    line goes whatever its hits.
    """

    _ROUNDS = 256

    def __init__(self, small_share: float = 0.1) -> None:
        if not 0 < small_share < 1:
            raise ValueError(f"small_share is a share between 0 and 1, not {small_share}")
        self._small_share = small_share
        self._clock = 0
        self._sizes = [0, 0]
        self._ghosts = _Ghosts()

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        columns.add("s3.rank", np.int64, None)
        columns.add("s3.queue", np.uint8, None)
        columns.add("s3.hits", np.uint8, 0)
        columns.add("s3.path", np.uint64, None)
        if self._clock:
            raise ValueError("an eviction policy serves one index")
        self._clock = 1
        self._leaves, self._columns = leaves, columns
        self._heaps = [LeafHeap(leaves, self._rank) for _ in (_SMALL, _MAIN)]

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        columns = self._columns
        names = name_run(columns["s3.path"].item(parent) if parent >= 0 else 0, run, len(blocks), extras)
        columns["s3.path"][blocks] = names
        back = self._ghosts.take(names)
        columns["s3.queue"][blocks] = back
        self._clock += 1
        columns["s3.rank"][blocks] = self._clock
        returned = int(back.sum())
        self._sizes[_MAIN] += returned
        self._sizes[_SMALL] += len(blocks) - returned
        self._ghosts.reserve(int((1 - self._small_share) * sum(self._sizes)))

    def touched(self, blocks: Numbers) -> None:
        hits = self._columns["s3.hits"]
        hits[blocks] = np.minimum(hits[blocks] + 1, 3)

    def renewed(self, blocks: Numbers) -> None:
        """To the end of their queue."""
        self._clock += 1
        self._columns["s3.rank"][blocks] = self._clock

    def retained(self, blocks: Numbers) -> None:
        """Nothing to do: retention is `Retained`'s business."""

    def offer(self, leaf: int) -> None:
        tail = self._leaves.tail(leaf)
        if tail >= 0:
            self._heaps[int(self._columns["s3.queue"][tail])].offer(leaf, tail)

    def victim(self, limit: int) -> tuple[int, int]:
        hits = self._columns["s3.hits"]
        for _ in range(self._ROUNDS):
            leaf, tail, queue = self._front()
            if leaf < 0 or hits.item(tail) <= (queue == _SMALL):
                return leaf, self._run(leaf, queue, limit)
            self._clock += 1
            self._columns["s3.rank"][tail] = self._clock
            if queue == _MAIN:
                hits[tail] -= 1
                continue
            hits[tail] = 0
            self._columns["s3.queue"][tail] = _MAIN
            self._sizes[_SMALL] -= 1
            self._sizes[_MAIN] += 1
            self._heaps[_SMALL].drop_front()
            self._heaps[_MAIN].offer(leaf, tail)
        leaf, tail, _ = self._front()
        hits[tail] = 0  # so that it is the victim too when asked again
        return leaf, 1

    def evicted(self, blocks: Sequence[int]) -> None:
        queues, paths = self._columns["s3.queue"], self._columns["s3.path"]
        for block in blocks:
            queue: int = queues.item(block)
            self._sizes[queue] -= 1
            if queue == _SMALL:
                self._ghosts.add(paths.item(block))

    def dropped(self, blocks: Numbers) -> None:
        from_main = int(self._columns["s3.queue"][blocks].sum())
        self._sizes[_MAIN] -= from_main
        self._sizes[_SMALL] -= len(blocks) - from_main

    def _run(self, leaf: int, queue: int, limit: int) -> int:
        """Blocks that would be the next victims one by one: tails of equal place in the same queue, for as long as it
        stays that queue's turn."""
        small, total = self._sizes[_SMALL], sum(self._sizes)
        excess = small - self._small_share * total
        turns = excess / (1 - self._small_share) + 1 if queue == _SMALL else -excess / self._small_share
        limit = min(limit, RUN, int(turns))
        if leaf < 0 or limit <= 1:
            return 1
        tips = self._leaves.tips(leaf, limit)
        if len(tips) == 1:
            return 1
        queues, ranks, hits = (self._columns[name][tips] for name in ("s3.queue", "s3.rank", "s3.hits"))
        return leading((queues == queue) & (ranks == ranks[0]) & (hits <= (queue == _SMALL)))

    def _front(self) -> tuple[int, int, int]:
        small, main = self._sizes
        order = (_SMALL, _MAIN) if small >= self._small_share * (small + main) else (_MAIN, _SMALL)
        for queue in order:
            while True:
                leaf, tail, _ = self._heaps[queue].front()
                if leaf < 0:
                    break
                actual: int = self._columns["s3.queue"].item(tail)
                if actual == queue:
                    return leaf, tail, queue
                self._heaps[queue].drop_front()
                self._heaps[actual].offer(leaf, tail)
        return -1, -1, _SMALL

    def check(self, leaves: set[int]) -> None:
        for leaf in leaves:
            tail = self._leaves.tail(leaf)
            held = self._heaps[int(self._columns["s3.queue"][tail])].holds(leaf, tail)
            assert held, f"leaf {leaf} would be found too late"

    def _rank(self, tail: int) -> int:
        return self._columns["s3.rank"].item(tail)


class _Ghosts:
    """Names (64-bit path hashes) of evicted blocks, each remembered until `room` more were evicted.

    A direct-mapped table of twice to four times `room` places, a newcomer overwriting: about one name in six is
    forgotten early, nothing is ever searched or shifted, and memory is 12 bytes a place."""

    def __init__(self) -> None:
        self.room = 0
        self._evictions = 0
        self._names: NDArray[Any] = np.zeros(256, dtype=np.uint64)
        self._since: NDArray[Any] = np.zeros(256, dtype=np.uint32)  # the eviction, modulo 2**32

    def reserve(self, room: int) -> None:
        """Remember at least that many from now on; amortised O(1) when called with every new size."""
        if room <= self.room:
            return
        self.room = room
        if 2 * room <= len(self._names):
            return
        names, since = self._names, self._since
        places = 1 << (2 * room - 1).bit_length()
        self._names, self._since = np.zeros(places, dtype=np.uint64), np.zeros(places, dtype=np.uint32)
        order = np.argsort(self._age(since))[::-1]  # oldest first: the youngest overwrite
        order = order[names[order] != 0]
        place = names[order] & np.uint64(places - 1)
        self._names[place], self._since[place] = names[order], since[order]

    def add(self, name: int) -> None:
        self._evictions += 1
        place = name & (len(self._names) - 1)
        self._names[place] = name
        self._since[place] = self._evictions & 0xFFFFFFFF

    def take(self, names: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """1 where a name is remembered; these are forgotten."""
        place = names & np.uint64(len(self._names) - 1)
        known = (self._names[place] == names) & (self._age(self._since[place]) < self.room)
        self._names[place[known]] = 0
        return known.astype(np.uint8)

    def _age(self, since: NDArray[Any]) -> NDArray[Any]:
        return np.uint32(self._evictions & 0xFFFFFFFF) - since
