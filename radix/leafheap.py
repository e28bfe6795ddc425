"""A heap of leaves that a hit never touches: entries are corrected when they surface."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

_ID_BITS = 32
_ID_MASK = (1 << _ID_BITS) - 1


class _Tails(Protocol):
    def tail(self, leaf: int) -> int: ...


class LeafHeap:
    """Leaves by the rank of their tail, lowest first. An entry's rank is never above the true one, and one that
    surfaces too low is put back; so ranks may rise freely, and a leaf whose rank fell is offered again. At most one
    entry a leaf id counts, and superseded ones are swept out when they are the majority: O(ids) memory, amortised
    O(log ids) a call."""

    def __init__(self, leaves: _Tails, rank: Callable[[int], int]) -> None:
        self._leaves, self._rank = leaves, rank
        self._heap: list[int] = []  # rank << 32 | leaf
        self._entry: dict[int, int] = {}  # leaf -> its entry that counts

    def __len__(self) -> int:
        """Entries held, superseded ones included."""
        return len(self._heap)

    def offer(self, leaf: int, tail: int) -> None:
        entry = self._rank(tail) << _ID_BITS | leaf
        known = self._entry.get(leaf)
        if known is not None and known <= entry:
            return
        self._entry[leaf] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entry) + 64:
            self._heap = list(self._entry.values())
            heapify(self._heap)

    def lowest(self) -> float:
        """No rank here is below it; infinite if there is no leaf. O(1), where `front` looks at the tail."""
        return self._heap[0] >> _ID_BITS if self._heap else float("inf")

    def front(self) -> tuple[int, int, int]:
        """The leaf of lowest rank, its tail and that rank, left in place; leaf and tail are -1 if there is none."""
        heap, known = self._heap, self._entry
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
            actual = self._rank(tail) << _ID_BITS | leaf
            if actual == entry:
                return leaf, tail, entry >> _ID_BITS
            known[leaf] = actual
            heapreplace(heap, actual)
        return -1, -1, 0

    def drop_front(self) -> None:
        """Forget the leaf that `front` just returned."""
        del self._entry[heappop(self._heap) & _ID_MASK]

    def holds(self, leaf: int, tail: int) -> bool:
        """Whether that leaf would surface in time. O(entries), for checks."""
        entry = self._entry.get(leaf)
        return entry is not None and entry in self._heap and entry >> _ID_BITS <= self._rank(tail)
