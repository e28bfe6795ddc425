"""Room: makes slots free when a size class has none left, by evicting what is coldest. Never a leased block.

Within a size, the namespace whose next victim was used longest ago gives first. If a whole slab of another size has
not been used since before that victim, the slab goes instead. Where tenants share the store, one at its quota makes
room among its own blocks only, and otherwise tenants/share.py says whose turn it is. Owned by the store, used by its
thread.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..radix import PrefixIndex
from .residents import Residents
from .slabs import SizeClass, SlabPool
from .tenants.share import WITHIN, Share, coldest, evict_in_turn, standing

# Looking for a cold slab reads all blocks of another size; after a search in vain the next one waits.
SLAB_SEARCH_INTERVAL_S = 1.0
VICTIM_RUN = 64  # blocks looked at together before they leave
SLABS_TRIED = 4  # of one size, coldest first, before the search is in vain


class Given(NamedTuple):
    """Slots that can be had, and why they are fewer than asked for: "", "quota" (of the tenant) or "full"."""

    slots: int
    short: str


class _Slab(NamedTuple):
    """How ready it is to go: by rank, then by when its newest block was used last."""

    rank: int
    last_use: float
    slab: int


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
    """`spaces` is the store's live table of namespaces. tenants: whether they share it."""

    def __init__(
        self,
        pool: SlabPool,
        spaces: Mapping[bytes, Residents],
        clock: Callable[[], float],
        *,
        tenants: bool = False,
    ) -> None:
        self._pool = pool
        self._spaces = spaces
        self._clock = clock
        self._tenants = tenants
        self._search_after: dict[int, float] = {}  # slot size -> when a slab may be looked for again

    def make(self, space: Residents, count: int) -> Given:
        """Evict until `count` slots for this namespace are obtainable or nothing more may go."""
        wanted, short = space.size_class, ""
        if space.share is not None and space.share.quota is not None:
            allowed = self._within_quota(space, count)
            count, short = allowed, "quota" if allowed < count else ""
        while (missing := count - wanted.obtainable) > 0:
            if not self._take_slab(space) and not self._evict(space, missing):
                break
        given = min(count, wanted.obtainable)
        return Given(given, "full" if given < count else short)

    def next_victims(self, space: Residents, free_share: int, limit: int) -> tuple[Residents, NDArray[np.int32]] | None:
        """Up to `limit` blocks of this namespace's size that would leave next, tail first, and whose they are; None
        when there are none, or when one slot in `free_share` is obtainable already, to its tenant, too."""
        wanted, share = space.size_class, space.share
        spaces = self._of(wanted)
        spare = (wanted.used + wanted.obtainable) // free_share - wanted.obtainable
        if share is not None and share.quota is not None:
            own = (share.quota // free_share - share.left) // wanted.slot_bytes
            if own > spare:
                spare, spaces = own, [each for each in spaces if each.share is share]
        found = coldest(spaces, share) if spare > 0 else None
        if found is None:
            return None
        return found[2], found[2].index.next_victims(min(spare, limit, VICTIM_RUN, self.may_take(found[2], space)))

    def may_take(self, owner: Residents, space: Residents) -> int:
        """How many of its blocks a namespace has to give at present to make room for another."""
        return (standing(owner, space.share) or (WITHIN, 0))[1]

    def _within_quota(self, space: Residents, count: int) -> int:
        """Evict the tenant's own blocks, those of this size first, until its quota has room for `count` slots of this
        namespace's size, or nothing more may go; for how many there is."""
        share, slot_bytes = space.share, space.size_class.slot_bytes
        assert share is not None
        assert share.quota is not None
        count = min(count, share.quota // slot_bytes)
        own = [each for each in self._spaces.values() if each.share is share]
        for group in ([each for each in own if each.size_class is space.size_class], own):
            largest = max(each.unit_bytes for each in group)
            while (excess := share.excess(count * slot_bytes)) > 0:
                if not evict_coldest(group, -(-excess // largest), _evict_for_quota):
                    break
        return min(count, share.left // slot_bytes)

    def _evict(self, space: Residents, count: int) -> int:
        """Up to `count` blocks of this size, of all its namespaces. O(log) each."""
        spaces = self._of(space.size_class)
        if self._tenants:
            return evict_in_turn(spaces, count, _evict_in_turn, space.share)
        return evict_coldest(spaces, count, Residents.evict)

    def _take_slab(self, space: Residents) -> bool:
        """Empty a slab of another size if all of it is colder than this size's next victim (or there is no victim)."""
        wanted, now = space.size_class, self._clock()
        others = [each for each in self._pool.classes() if each is not wanted and each.used]
        if not others or now < self._search_after.get(wanted.slot_bytes, now):
            return False
        limit = self._coldest(wanted, space.share)
        best: tuple[_Slab, SizeClass] | None = None
        for other in others:
            first = self._coldest(other, space.share)
            if first is not None and (limit is None or first < limit):
                found = self._coldest_slab(other, space.share)
                if found is not None and (best is None or found < best[0]):
                    best = found, other
        if best is None or (limit is not None and best[0][:2] >= limit):
            self._search_after[wanted.slot_bytes] = now + SLAB_SEARCH_INTERVAL_S
            return False
        found, other = best
        for each in self._of(other):
            each.evict_slab(found.slab)
        return self._pool.free_slabs > 0

    def _coldest(self, size_class: SizeClass, asker: Share | None) -> tuple[int, float] | None:
        """(rank, last use) of the next victim of a size."""
        found = coldest(self._of(size_class), asker)
        return found[:2] if found is not None else None

    def _coldest_slab(self, size_class: SizeClass, asker: Share | None) -> _Slab | None:
        """The slab that is readiest to go, of those without a lease."""
        last_use = np.full(self._pool.count, -np.inf)
        ranks = np.zeros(self._pool.count, dtype=np.int64)
        spaces = self._of(size_class)
        for space in spaces:
            live = space.live()
            slabs = size_class.slab_of(space.index.values(live))
            np.maximum.at(last_use, slabs, space.index.col("last_use")[live])
            stands = standing(space, asker)
            np.maximum.at(ranks, slabs, WITHIN if stands is None else stands[0])
        for space in spaces:
            last_use[size_class.slab_of(space.busy_slots())] = np.inf
        slabs = np.array(size_class.slabs(), dtype=np.int64)
        order = slabs[np.lexsort((last_use[slabs], ranks[slabs]))]
        for slab in order[last_use[order] < np.inf][:SLABS_TRIED].tolist():
            if self._spares_floors(slab, spaces, asker):
                return _Slab(int(ranks[slab]), float(last_use[slab]), slab)
        return None

    @staticmethod
    def _spares_floors(slab: int, spaces: Sequence[Residents], asker: Share | None) -> bool:
        """Whether nobody would be below its floor without this slab, and what hangs below it."""
        losses: dict[Share, int] = {}
        for space in spaces:
            share = space.share
            if share is not None and share is not asker and share.floor:
                losses[share] = losses.get(share, 0) + _slab_blocks(space, slab) * space.unit_bytes
        return all(not loss or share.used - loss >= share.floor for share, loss in losses.items())

    def _of(self, size_class: SizeClass) -> list[Residents]:
        return [space for space in self._spaces.values() if space.size_class is size_class]


def _slab_blocks(space: Residents, slab: int) -> int:
    """How many blocks evict_slab() would remove: those in it, and all that hang below. O(blocks of the namespace)."""
    index, live = space.index, space.live()
    gone = np.zeros(len(index.col("live")), dtype=np.bool_)
    gone[live[space.size_class.slab_of(index.values(live)) == slab]] = True
    for blocks, _, above, _ in index.runs():  # parents before children
        inside = [0] if above >= 0 and gone[above] else np.flatnonzero(gone[blocks])[:1]
        for first in inside:
            gone[blocks[first:]] = True
    return int(np.count_nonzero(gone))


def _evict_for_quota(space: Residents, count: int) -> int:
    return space.evict(count, "quota")


def _evict_in_turn(space: Residents, count: int) -> int:
    """What is above its quota leaves for that; the others for want of room."""
    over = space.share is not None and space.share.excess(0) > 0
    return space.evict(count, "quota" if over else "capacity")
