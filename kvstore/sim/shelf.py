"""Shelf: one tier of the simulated store, without bytes: how many blocks fit, which ones are there, which leave next.

Each namespace has its own index and policy, as in the store; between namespaces the one whose next victim was used
longest ago gives first. All blocks are of one size here, so that a capacity is a number of blocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...radix import SEED_BYTES, EvictionPolicy, Match, PrefixIndex
from ..residents import ABSENT
from ..room import VICTIM_RUN, evict_coldest

_NOTHING = Match(np.empty(0, dtype=np.int32), 0)


@dataclass(frozen=True, slots=True)
class _Space:
    index: PrefixIndex


class Shelf:
    """policy: makes the eviction policy of a namespace. clock: seconds, of the trace. marked: blocks have a column
    `below` that says whether the tier below has a copy."""

    def __init__(
        self,
        name: str,
        capacity_blocks: int,
        *,
        policy: Callable[[], EvictionPolicy],
        clock: Callable[[], float],
        marked: bool = False,
    ) -> None:
        self.name = name
        self.capacity_blocks = capacity_blocks
        self.used_blocks = 0
        self.evictions = 0
        self.evictions_reused = 0
        """Those of them that had been hit."""
        self._policy = policy
        self._clock = clock
        self._marked = marked
        self._spaces: dict[int, _Space] = {}

    def index(self, space: int) -> PrefixIndex:
        """The index of a namespace; its blocks have one token each, the block's number in the trace."""
        if space not in self._spaces:
            index = PrefixIndex(bytes(SEED_BYTES), block_tokens=1, policy=self._policy(), clock=self._clock)
            if self._marked:
                index.column("below", np.uint8, ABSENT)
            self._spaces[space] = _Space(index)
        return self._spaces[space].index

    def match(self, space: int, blocks: bytes) -> Match:
        """What is here of a prompt."""
        return self._spaces[space].index.match(blocks) if space in self._spaces else _NOTHING

    def make(self, count: int) -> int:
        """Evict until `count` blocks fit or nothing more may go; how many of them fit."""
        missing = count - (self.capacity_blocks - self.used_blocks)
        if missing > 0:
            evict_coldest(list(self._spaces.values()), missing, self._evict)
        return min(count, self.capacity_blocks - self.used_blocks)

    def add(self, space: int, blocks: bytes, match: Match, count: int) -> Match:
        """Put up to `count` blocks behind `match`, as many as can be made to fit while the match itself stays; what is
        here of them all then."""
        index = self.index(space)
        if len(match):
            index.lease(match.last)
        fit = self.make(count)
        path = index.insert(blocks, np.zeros(fit, dtype=np.int64), skip=len(match)).blocks
        self.used_blocks += fit
        if len(match):
            index.release(match.last)
        return Match(path, len(path))

    def col(self, space: int, name: str) -> NDArray[Any]:
        """A column of a namespace's index."""
        return self.index(space).col(name)

    def next_victims(self, spare_blocks: int) -> tuple[int, NDArray[np.int32]] | None:
        """The namespace and blocks, tail first, that would leave next to make so many blocks free; None when they are,
        or when nothing may leave."""
        missing = spare_blocks - (self.capacity_blocks - self.used_blocks)
        coldest = [(use, space) for space, each in self._spaces.items() if (use := each.index.coldest()) is not None]
        if missing <= 0 or not coldest:
            return None
        space = min(coldest, key=lambda row: row[0])[1]
        return space, self._spaces[space].index.next_victims(min(missing, VICTIM_RUN))

    def evict(self, space: int, count: int) -> None:
        """Let up to `count` blocks of this namespace go."""
        self._evict(self._spaces[space], count)

    def drop_tips(self, space: int, blocks: bytes, first: int) -> None:
        """Drop blocks `first`.. of a prompt from its end on, up to one that others hang below. No evictions, these."""
        index = self.index(space)
        for block in index.match(blocks).blocks[first:][::-1].tolist():
            if not index.is_tip(block):
                break
            self.used_blocks -= len(index.remove(block))

    def check(self) -> None:
        """AssertionError unless the blocks, recounted, fit. O(everything), for tests."""
        for space in self._spaces.values():
            space.index.check()
        held = sum(len(space.index) for space in self._spaces.values())
        assert self.used_blocks == held, "blocks of a tier are miscounted"
        assert self.used_blocks <= self.capacity_blocks, "a tier holds more than fits"

    def _evict(self, space: _Space, count: int) -> int:
        removed = space.index.evict(count)
        self.used_blocks -= len(removed)
        self.evictions += len(removed)
        self.evictions_reused += int(np.count_nonzero(removed.hits))
        return len(removed)
