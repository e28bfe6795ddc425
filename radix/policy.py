"""Eviction order: which leaf of the tree gives up its tail next.

A policy sees blocks by number and leaves by id, and only ever offers leaves: a tree is evicted from its tips, so what
lies under a lease or above a live block is never asked about. Both policies keep leaves in a heap by the rank of their
tail and correct an entry only when it surfaces, so that a hit costs no heap work at all.
"""

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from .columns import Columns

Numbers = NDArray[np.int32]
_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1
_RUN = 128  # blocks of one leaf looked at together: bounds the work for one that goes alone


class LeafView(Protocol):
    """What a policy may ask of the tree."""

    def tail(self, leaf: int) -> int:
        """The last block of that leaf, or -1 when nothing can be evicted there: gone, not a leaf, or leased."""
        ...

    def tips(self, leaf: int, limit: int) -> Numbers:
        """Up to `limit` blocks that could be evicted one after the other there, tail first; the leaf has a tail."""
        ...


class EvictionPolicy(Protocol):
    """Order of eviction for one index. Its owner calls; the policy never changes the tree.

    The owner calls `inserted` for each new run before its leaf is offered, `touched` once per request, `offer`
    whenever a leaf's tail became evictable or another block (offering in vain is harmless), and `evicted` or `dropped`
    when blocks leave the tree. `victim` says what goes next; asked again, it says the same.
    """

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        """Once, before anything else; ValueError when the policy serves an index already."""
        ...

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        """New blocks, root first, below block `parent` (-1 at the root); their token bytes; the first one's extras."""
        ...

    def touched(self, blocks: Numbers) -> None:
        """One hit on each of these blocks."""
        ...

    def retained(self, blocks: Numbers) -> None:
        """The `ret.*` columns of these blocks were written; their leaves are offered next."""
        ...

    def offer(self, leaf: int) -> None:
        """The leaf may be a candidate. O(log leaves)."""
        ...

    def victim(self, limit: int) -> tuple[int, int]:
        """Leaf to evict from next and how many blocks, 1 to `limit`, may go from its end before asking again; leaf -1
        if there is none. Amortised O(log leaves)."""
        ...

    def evicted(self, blocks: Sequence[int]) -> None:
        """These blocks of the victim are leaving the tree, tail first."""
        ...

    def dropped(self, blocks: Numbers) -> None:
        """These blocks left the tree because their owner removed them."""
        ...

    def check(self, leaves: set[int]) -> None:
        """AssertionError unless every one of these evictable leaves would be found."""
        ...


class _LeafHeap:
    """Leaves by the rank of their tail, lowest first. An entry's rank is never above the true one, and one that
    surfaces too low is put back; so ranks may rise freely. At most one entry a leaf id counts, and superseded ones are
    swept out when they are the majority: O(ids) memory, amortised O(log ids) a call."""

    def __init__(self, leaves: LeafView, columns: Columns, rank: str) -> None:
        self._leaves, self._columns, self._rank = leaves, columns, rank
        self._heap: list[int] = []  # rank << 32 | leaf
        self._entry: dict[int, int] = {}  # leaf -> its entry that counts

    def offer(self, leaf: int, tail: int) -> None:
        entry = self._columns[self._rank].item(tail) << _ID_BITS | leaf
        known = self._entry.get(leaf)
        if known is not None and known <= entry:
            return
        self._entry[leaf] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry) + 64:
            self._heap = list(self._entry.values())
            heapify(self._heap)

    def front(self) -> tuple[int, int]:
        """The leaf of lowest rank and its tail, left in place; -1, -1 if there is none."""
        heap, known, ranks = self._heap, self._entry, self._columns[self._rank]
        while heap:
            entry = heap[0]
            leaf = entry & _ID_MASK
            if known.get(leaf) != entry:
                heappop(heap)
                continue
            tail = self._leaves.tail(leaf)
            if tail < 0:
                heappop(heap)
                del known[leaf]
                continue
            actual = ranks.item(tail) << _ID_BITS | leaf
            if actual == entry:
                return leaf, tail
            known[leaf] = actual
            heapreplace(heap, actual)
        return -1, -1

    def drop_front(self) -> None:
        """Forget the leaf that `front` just returned."""
        del self._entry[heappop(self._heap) & _ID_MASK]

    def check(self, leaf: int, tail: int) -> None:
        entry = self._entry.get(leaf)
        assert entry is not None, f"leaf {leaf} is evictable but not queued"
        assert entry in self._heap, f"the entry of leaf {leaf} is not in the heap"
        assert entry >> _ID_BITS <= self._columns[self._rank].item(tail), f"leaf {leaf} is queued above its rank"


class Lru:
    """Least recently used tail first; a run that one request used leaves from its end."""

    def __init__(self) -> None:
        self._clock = 0

    def bind(self, leaves: LeafView, columns: Columns) -> None:
        columns.add("lru.rank", np.int64, None)
        if self._clock:
            raise ValueError("an eviction policy serves one index")
        self._clock = 1
        self._leaves, self._columns = leaves, columns
        self._heap = _LeafHeap(leaves, columns, "lru.rank")

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        self.touched(blocks)

    def touched(self, blocks: Numbers) -> None:
        self._clock += 1
        self._columns["lru.rank"][blocks] = self._clock

    def retained(self, blocks: Numbers) -> None:
        """Nothing to do: retention is `Retained`'s business."""

    def offer(self, leaf: int) -> None:
        tail = self._leaves.tail(leaf)
        if tail >= 0:
            self._heap.offer(leaf, tail)

    def victim(self, limit: int) -> tuple[int, int]:
        leaf, _ = self._heap.front()
        if leaf < 0 or limit == 1:
            return leaf, 1
        tips = self._leaves.tips(leaf, min(limit, _RUN))
        if len(tips) == 1:
            return leaf, 1
        ranks = self._columns["lru.rank"][tips]
        return leaf, _leading(ranks == ranks[0])

    def evicted(self, blocks: Sequence[int]) -> None:
        """Nothing to do: ranks die with their blocks."""

    def dropped(self, blocks: Numbers) -> None:
        """Nothing to do."""

    def check(self, leaves: set[int]) -> None:
        for leaf in leaves:
            self._heap.check(leaf, self._leaves.tail(leaf))


def _leading(agrees: NDArray[np.bool_]) -> int:
    """How many of the first entries are true."""
    return len(agrees) if agrees.all() else int(agrees.argmin())


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
        self._heaps = [_LeafHeap(leaves, columns, "s3.rank"), _LeafHeap(leaves, columns, "s3.rank")]

    def inserted(self, blocks: Numbers, parent: int, run: memoryview, extras: bytes) -> None:
        columns, digest = self._columns, xxhash.xxh3_64_intdigest
        path = columns["s3.path"].item(parent) if parent >= 0 else 0
        tokens, size, paths = bytes(run), len(run) // len(blocks), array("Q")
        if extras:
            path = digest(extras, path)
        for at in range(0, len(tokens), size):
            path = digest(tokens[at : at + size], path)
            paths.append(path)
        names = np.frombuffer(paths, dtype=np.uint64)
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
        queue: int = self._columns["s3.queue"].item(blocks[0])  # a run is of one queue
        self._sizes[queue] -= len(blocks)
        if queue == _SMALL:
            paths = self._columns["s3.path"]
            for block in blocks:
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
        limit = min(limit, _RUN, int(turns))
        if leaf < 0 or limit <= 1:
            return 1
        tips = self._leaves.tips(leaf, limit)
        if len(tips) == 1:
            return 1
        queues, ranks, hits = (self._columns[name][tips] for name in ("s3.queue", "s3.rank", "s3.hits"))
        return _leading((queues == queue) & (ranks == ranks[0]) & (hits <= (queue == _SMALL)))

    def _front(self) -> tuple[int, int, int]:
        small, main = self._sizes
        order = (_SMALL, _MAIN) if small >= self._small_share * (small + main) else (_MAIN, _SMALL)
        for queue in order:
            while True:
                leaf, tail = self._heaps[queue].front()
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
            self._heaps[int(self._columns["s3.queue"][tail])].check(leaf, tail)


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
