"""Share: what one tenant has of one tier, and who has to give way to whom.

The order, in DRAM and in the lower tier alike: first tenants above their quota (it was lowered), then all others; among
equals the coldest block. Nobody is taken below its floor on another's account.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Protocol, TypeVar

from ...radix import PrefixIndex

OVER, WITHIN = 0, 1  # ranks: the lower one gives first
ANY = 1 << 62  # as many as there are


@dataclass(slots=True, eq=False)
class Share:
    """Bytes. quota: what may be used, None = no limit; floor: what others cannot take; used: now."""

    quota: int | None = None
    floor: int = 0
    used: int = 0

    @property
    def left(self) -> int:
        """What may still be taken; 0 above the quota."""
        return ANY if self.quota is None else max(self.quota - self.used, 0)

    def excess(self, size: int) -> int:
        """What must go before `size` bytes more fit the quota; 0 or less: nothing."""
        return -ANY if self.quota is None else self.used + size - self.quota


class Sharer(Protocol):
    """Someone with an index, and blocks of one size. share: the tenant's, None = nobody's."""

    @property
    def index(self) -> PrefixIndex: ...

    @property
    def share(self) -> Share | None: ...

    @property
    def unit_bytes(self) -> int: ...


S = TypeVar("S", bound=Sharer)


def standing(holder: Sharer, asker: Share | None) -> tuple[int, int] | None:
    """(rank, how many blocks may go before it has to be asked again) when `asker` wants room; None: none may."""
    share = holder.share
    if share is None:
        return WITHIN, ANY
    above_floor = ANY if share is asker else (share.used - share.floor) // holder.unit_bytes
    if above_floor <= 0:
        return None
    over = share.excess(0)
    if over > 0:
        return OVER, min(-(-over // holder.unit_bytes), above_floor)
    return WITHIN, above_floor


def evict_in_turn(holders: Sequence[S], count: int, evict: Callable[[S, int], int], asker: Share | None) -> int:
    """As room.evict_coldest, by standing first; `evict` must count what it frees in the share. O(holders) and O(log) a
    block. A standing only falls while others give, so that an old one in the queue is put right when its turn comes."""
    queue: list[tuple[int, float, int]] = []
    for order, holder in enumerate(holders):
        entry = _entry(holder, order, asker)
        if entry is not None:
            queue.append(entry)
    heapify(queue)
    taken = 0
    while queue and taken < count:
        order = queue[0][2]
        holder = holders[order]
        stands, gone = standing(holder, asker), 1
        if stands is not None and stands[0] == queue[0][0]:
            gone = evict(holder, min(stands[1], count - taken) if len(queue) == 1 else 1)
            taken += gone
        entry = _entry(holder, order, asker) if gone else None
        if entry is None:
            heappop(queue)
        else:
            heapreplace(queue, entry)
    return taken


def coldest(holders: Sequence[S], asker: Share | None) -> tuple[int, float, S] | None:
    """(rank, last use of its next victim, holder) of who gives next."""
    entries = [entry for order, holder in enumerate(holders) if (entry := _entry(holder, order, asker)) is not None]
    rank, use, order = min(entries, default=(0, 0.0, -1))
    return (rank, use, holders[order]) if order >= 0 else None


def _entry(holder: Sharer, order: int, asker: Share | None) -> tuple[int, float, int] | None:
    stands = standing(holder, asker)
    use = holder.index.coldest() if stands is not None else None
    return (stands[0], use, order) if stands is not None and use is not None else None
