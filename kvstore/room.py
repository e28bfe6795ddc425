"""Room: makes slots free when a size class has none left, by evicting what is coldest. Never a leased block.

Within a size, the namespace whose next victim was used longest ago gives first. If a whole slab of another size has
not been used since before that victim, the slab goes instead. Owned by the store, used by its thread.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..radix import PrefixIndex
from .residents import Residents
from .slabs import SizeClass, SlabPool

# Looking for a cold slab reads all blocks of another size; after a search in vain the next one waits.
SLAB_SEARCH_INTERVAL_S = 1.0
VICTIM_RUN = 64  # blocks looked at together before they leave


class Indexed(Protocol):
    """Someone with an index of its own."""

    @property
    def index(self) -> PrefixIndex: ...


Holder = TypeVar("Holder", bound=Indexed)


def evict_coldest(holders: Sequence[Holder], count: int, evict: Callable[[Holder, int], int]) -> int:
    """Let `evict(holder, n)` take up to `count` blocks in all, always from whose next victim was used longest ago; how
    many it took. O(holders) and O(log) a block."""
    if len(holders) == 1:  # nothing to compare, which costs as much as an eviction
        return evict(holders[0], count)
    queue: list[tuple[float, int]] = []
    for order, holder in enumerate(holders):
        coldest = holder.index.coldest()
        if coldest is not None:
            queue.append((coldest, order))
    heapq.heapify(queue)
    taken = 0
    while queue and taken < count:
        _, order = queue[0]
        holder = holders[order]
        taken += evict(holder, 1 if len(queue) > 1 else count - taken)
        coldest = holder.index.coldest()
        if coldest is None or len(queue) == 1:
            heapq.heappop(queue)
        else:
            heapq.heapreplace(queue, (coldest, order))
    return taken


class Room:
    """`spaces` is the store's live table of namespaces."""

    def __init__(self, pool: SlabPool, spaces: Mapping[bytes, Residents], clock: Callable[[], float]) -> None:
        self._pool = pool
        self._spaces = spaces
        self._clock = clock
        self._search_after: dict[int, float] = {}  # slot size -> when a slab may be looked for again

    def make(self, wanted: SizeClass, count: int) -> int:
        """Evict until `count` slots are obtainable or nothing more may go; how many of them are obtainable."""
        while (missing := count - wanted.obtainable) > 0:
            if not self._take_slab(wanted) and not self._evict(wanted, missing):
                break
        return min(count, wanted.obtainable)

    def next_victims(
        self, wanted: SizeClass, free_share: int, limit: int
    ) -> tuple[Residents, NDArray[np.int32]] | None:
        """Up to `limit` blocks of this size that would leave next, tail first, and whose they are; None when there are
        none, or when one slot in `free_share` is obtainable already."""
        spare = (wanted.used + wanted.obtainable) // free_share - wanted.obtainable
        spaces = [(use, space) for space in self._of(wanted) if (use := space.index.coldest()) is not None]
        if spare <= 0 or not spaces:
            return None
        space = min(spaces, key=lambda row: row[0])[1]
        return space, space.index.next_victims(min(spare, limit, VICTIM_RUN))

    def _evict(self, wanted: SizeClass, count: int) -> int:
        """Up to `count` blocks of this size, the coldest of all its namespaces first. O(log) each."""
        return evict_coldest(list(self._of(wanted)), count, Residents.evict)

    def _take_slab(self, wanted: SizeClass) -> bool:
        """Empty a slab of another size if all of it is colder than this size's next victim (or there is no victim)."""
        others = [each for each in self._pool.classes() if each is not wanted and each.used]
        now = self._clock()
        if not others or now < self._search_after.get(wanted.slot_bytes, now):
            return False
        limit = self._coldest(wanted)
        best: tuple[float, int, SizeClass] | None = None
        for other in others:
            coldest = self._coldest(other)
            if coldest is not None and (limit is None or coldest < limit):
                found = self._coldest_slab(other)
                if found is not None and (best is None or found[0] < best[0]):
                    best = (*found, other)
        if best is None or (limit is not None and best[0] >= limit):
            self._search_after[wanted.slot_bytes] = now + SLAB_SEARCH_INTERVAL_S
            return False
        _, slab, other = best
        for space in self._of(other):
            space.evict_slab(slab)
        return self._pool.free_slabs > 0

    def _coldest(self, size_class: SizeClass) -> float | None:
        uses = [use for space in self._of(size_class) if (use := space.index.coldest()) is not None]
        return min(uses, default=None)

    def _coldest_slab(self, size_class: SizeClass) -> tuple[float, int] | None:
        """(when its newest block was used last, slab) of the coldest slab without a lease."""
        last_use = np.full(self._pool.count, -np.inf)
        for space in self._of(size_class):
            live = space.live()
            slabs = size_class.slab_of(space.index.values(live))
            np.maximum.at(last_use, slabs, space.index.col("last_use")[live])
        for space in self._of(size_class):
            last_use[size_class.slab_of(space.busy_slots())] = np.inf
        slabs = np.array(size_class.slabs(), dtype=np.int64)
        slab = int(slabs[np.argmin(last_use[slabs])])
        return (float(last_use[slab]), slab) if last_use[slab] < np.inf else None

    def _of(self, size_class: SizeClass) -> list[Residents]:
        return [space for space in self._spaces.values() if space.size_class is size_class]
