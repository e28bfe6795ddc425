"""Slabs: the arena cut into equal pieces, each lent to one slot size at a time, and the slots within them.

A slab goes to a size on demand and comes back as soon as its last slot is free. Within a size, free slots are kept as
runs that never span two slabs, so that several slots taken at once lie one after another wherever possible: a prefix
is then one memcpy. Slots are named by their first page, as in the arena. Used by one thread.

Costs: take and give are O(slots) plus O(1) per run, whatever the size of the arena.
"""

import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..proto import PAGE_BYTES

Pages = NDArray[np.int64]

TARGET_SLAB_BYTES = 64 << 20


class SlabPool:
    """All slabs of an arena of `pages` pages, and the size classes that use them.

    slab_bytes: wanted size of a slab; the arena is cut into as many equal ones as make them no larger.
    """

    def __init__(self, pages: int, slab_bytes: int = TARGET_SLAB_BYTES) -> None:
        self.count = -(-pages * PAGE_BYTES // slab_bytes)
        self.slab_pages = pages // self.count
        self.used_pages = np.zeros(pages, dtype=np.bool_)  # of the slots in use, the first page
        self._free = list(range(self.count))
        self._classes: dict[int, SizeClass] = {}

    @property
    def free_slabs(self) -> int:
        return len(self._free)

    @property
    def slab_bytes(self) -> int:
        return self.slab_pages * PAGE_BYTES

    def size_class(self, slot_bytes: int) -> "SizeClass":
        """The class of slots of that size, the same object every time. ValueError if no slab can hold one slot."""
        if slot_bytes > self.slab_bytes:
            raise ValueError(f"a slot of {slot_bytes} bytes is larger than a slab of {self.slab_bytes}")
        if slot_bytes not in self._classes:
            self._classes[slot_bytes] = SizeClass(self, slot_bytes // PAGE_BYTES)
        return self._classes[slot_bytes]

    def classes(self) -> Iterator["SizeClass"]:
        return iter(self._classes.values())

    def lend(self) -> int:
        """The lowest free slab; IndexError when there is none."""
        return heapq.heappop(self._free)

    def take_back(self, slab: int) -> None:
        heapq.heappush(self._free, slab)

    def check(self) -> None:
        """AssertionError unless every slab is free or lent exactly once and the classes add up."""
        lent = [slab for each in self.classes() for slab in each.slabs()]
        assert sorted([*lent, *self._free]) == list(range(self.count)), "a slab is lost or lent twice"
        for each in self.classes():
            each.check()
        used = sum(each.used for each in self.classes())
        assert used == int(self.used_pages.sum()), "used slots and the page map differ"


class SizeClass:
    """Slots of one size. A slot's number here is slab * slots_per_slab + position."""

    def __init__(self, pool: SlabPool, slot_pages: int) -> None:
        self.slot_pages = slot_pages
        self.slots_per_slab = pool.slab_pages // slot_pages
        self.free = 0  # free slots in slabs that this class holds
        self.used = 0
        self._pool = pool
        self._used_in: dict[int, int] = {}  # slab -> slots in use
        self._length: dict[int, int] = {}  # first number of a free run -> its length
        self._start: dict[int, int] = {}  # number after a free run -> its first number
        bins = self.slots_per_slab.bit_length() + 1
        self._bins: list[dict[int, None]] = [{} for _ in range(bins)]  # runs by bit length of their length

    @property
    def slot_bytes(self) -> int:
        return self.slot_pages * PAGE_BYTES

    @property
    def obtainable(self) -> int:
        """Slots that take() can give without anyone losing anything."""
        return self.free + self._pool.free_slabs * self.slots_per_slab

    def slabs(self) -> list[int]:
        return list(self._used_in)

    def slab_of(self, pages: Pages) -> Pages:
        return pages // self._pool.slab_pages

    def take(self, count: int) -> Pages:
        """`count` slots, int64, in runs as long as possible; count <= obtainable."""
        assert count <= self.obtainable, "slots were not obtainable"
        taken = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            start, length = self._pick(count - done)
            part = min(length, count - done)
            if part < length:
                self._add(start + part, length - part)
            taken[done : done + part] = np.arange(start, start + part)
            self._used_in[start // self.slots_per_slab] += part
            done += part
        self.free -= count
        self.used += count
        pages = self._pages(taken)
        self._pool.used_pages[pages] = True
        return pages

    def give(self, pages: Pages) -> None:
        """Take slots back; slabs left empty go back to the pool. AssertionError for a slot that is free already."""
        if not len(pages):
            return
        numbers = np.sort(self._numbers(pages))
        assert (numbers[1:] != numbers[:-1]).all(), "a slot was given back twice"
        assert self._pool.used_pages[pages].all(), "a slot was given back that nobody had"
        self._pool.used_pages[pages] = False
        self.free += len(pages)
        self.used -= len(pages)
        for start, length in self._runs(numbers):
            self._join(start, length)
            slab = start // self.slots_per_slab
            self._used_in[slab] -= length
            if not self._used_in[slab]:
                self._drop(slab)

    def _pick(self, wanted: int) -> tuple[int, int]:
        """Remove and return one free run: one of `wanted` slots or more, else a slab's, else one of the longest."""
        for bin_ in self._bins[(wanted - 1).bit_length() + 1 :]:
            if bin_:
                return self._remove(next(reversed(bin_)))
        if self._pool.free_slabs:
            slab = self._pool.lend()
            self._used_in[slab] = 0
            self.free += self.slots_per_slab
            return slab * self.slots_per_slab, self.slots_per_slab
        longest = next(bin_ for bin_ in reversed(self._bins) if bin_)
        return self._remove(next(reversed(longest)))

    def _runs(self, numbers: Pages) -> Iterator[tuple[int, int]]:
        """(first, length) of the runs in ascending numbers; none spans two slabs."""
        breaks = (np.diff(numbers) != 1) | (numbers[1:] % self.slots_per_slab == 0)
        edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(numbers)]
        firsts = numbers[edges[:-1]].tolist()
        for first, begin, end in zip(firsts, edges[:-1], edges[1:], strict=True):
            yield first, end - begin

    def _join(self, start: int, length: int) -> None:
        """Add a free run, merged with its neighbours of the same slab."""
        if start % self.slots_per_slab and start in self._start:
            before, size = self._remove(self._start[start])
            start, length = before, size + length
        end = start + length
        if end % self.slots_per_slab and end in self._length:
            length += self._remove(end)[1]
        self._add(start, length)

    def _add(self, start: int, length: int) -> None:
        self._length[start] = length
        self._start[start + length] = start
        self._bins[length.bit_length()][start] = None

    def _remove(self, start: int) -> tuple[int, int]:
        length = self._length.pop(start)
        del self._start[start + length]
        del self._bins[length.bit_length()][start]
        return start, length

    def _drop(self, slab: int) -> None:
        self._remove(slab * self.slots_per_slab)
        del self._used_in[slab]
        self.free -= self.slots_per_slab
        self._pool.take_back(slab)

    def _pages(self, numbers: Pages) -> Pages:
        slab, position = np.divmod(numbers, self.slots_per_slab)
        return slab * self._pool.slab_pages + position * self.slot_pages

    def _numbers(self, pages: Pages) -> Pages:
        slab, page = np.divmod(pages, self._pool.slab_pages)
        return slab * self.slots_per_slab + page // self.slot_pages

    def check(self) -> None:
        """AssertionError unless runs, bins, counts and the page map agree."""
        assert sum(self._length.values()) == self.free, "free runs and the count of free slots differ"
        assert self.free + self.used == len(self._used_in) * self.slots_per_slab, "slots are lost"
        assert sum(self._used_in.values()) == self.used, "slabs' counts and the class's differ"
        assert all(self._used_in.values()), "an empty slab was kept"
        ends = {start + length: start for start, length in self._length.items()}
        assert ends == self._start, "ends and starts of free runs differ"
        for start, length in self._length.items():
            assert start in self._bins[length.bit_length()], "a run is in the wrong bin"
            slab = start // self.slots_per_slab
            assert slab == (start + length - 1) // self.slots_per_slab, "a run spans two slabs"
            assert slab in self._used_in, "a free run in a slab of someone else"
            pages = self._pages(np.arange(start, start + length))
            assert not self._pool.used_pages[pages].any(), "a free slot is marked as used"
