"""Recounts of what a store's slots and leases are: AssertionError unless all agree. For tests and debugging."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from .residents import Residents
from .session import Session
from .shared import Backlog
from .slabs import SlabPool


class Holder(Protocol):
    """Someone who has leases that are no session's."""

    def leases(self, space: Residents) -> list[int]: ...


def check_slots(pool: SlabPool, spaces: Sequence[Residents]) -> None:
    """Every used slot has one owner. O(blocks)."""
    pool.check()
    for size_class in pool.classes():
        ours = [space for space in spaces if space.size_class is size_class]
        counted = sum(space.index.evictable + space.pinned + space.reserved for space in ours)
        assert counted == size_class.used, "evictable, leased and reserved slots are not all used slots"
        owners = [slot for space in ours for slot in space.owned_slots()]
        assert len(owners) == len(set(owners)) == size_class.used, "a slot has two owners, or none"
        assert pool.used_pages[owners].all(), "a slot that someone owns is free"


def check_leases(
    spaces: Sequence[Residents], sessions: Sequence[Session], holders: Iterable[Holder], backlog: Backlog
) -> None:
    """Every lease has its holder, and what is reserved adds up. O(blocks)."""
    holders = list(holders)
    for space in spaces:
        space.check()
        ours = [each for each in sessions if each.fingerprint == space.fingerprint]
        assert space.sessions == len(ours), "sessions of a namespace are miscounted"
        leases = [lease for holder in holders for lease in holder.leases(space)]
        held = sorted([*leases, *(lease for each in ours for lease in (*each.reads, *each.writes))])
        assert held == sorted([*space.reads, *space.writes]), "a lease without its holder"
        for each in ours:
            reserved = sum(len(space.writes[lease].slots) for lease in each.writes)
            assert reserved == each.reserved, "a session's reserved slots are miscounted"
    assert backlog.reserved == sum(each.reserved for each in sessions), "the backlog is miscounted"
    assert backlog.reserved <= backlog.limit_slots, "the backlog is above its limit"
