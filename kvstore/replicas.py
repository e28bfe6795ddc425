"""Replicas: which blocks of this store came from a node that still has them, so that they go before last copies do.

What is remembered of a block is a number, which stands for a process of a node and a stretch of time. Once that process
is no member any more, or will leave, what came from it counts as a last copy. Nobody says when a member drops a block;
so a number stands for what was fetched in PERIOD_S, and two periods later it is not believed any more either.

The node that lends does not count the copy that it knows of then: the copy is what leaves first, and two that each rely
on the other would lose the block. Used on the store's loop.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .residents import Residents

PERIOD_S = 900.0  # as long as the directory believes what it was told
_MOST = int(np.iinfo(np.uint16).max)
HOT_S = 300.0


@dataclass(frozen=True, slots=True)
class Warmth:
    """Bytes in DRAM. hot: used within HOT_S; last: that no other node is known to have, and hot_last: both."""

    hot_bytes: int
    last_bytes: int
    hot_last_bytes: int
    replica_bytes: int


class Replicas:
    """spaces: the store's live table of namespaces."""

    def __init__(self, spaces: Mapping[bytes, Residents], clock: Callable[[], float]) -> None:
        self._spaces = spaces
        self._clock = clock
        self._members: dict[str, object] = {}
        self._numbers: dict[tuple[str, object, int], int] = {}  # node, epoch, period
        self._period = 0
        self._free = list(range(_MOST, 0, -1))

    def keep(self, members: Mapping[str, object]) -> None:
        """These nodes are there and stay, with these epochs."""
        self._members = dict(members)
        self._forget(lambda node, epoch, _: self._members.get(node) != epoch)

    def origin(self, node: str) -> int:
        """What to mark blocks with that come from that node now; 0: they are not known to be elsewhere for long."""
        if node not in self._members:
            return 0
        period = int(self._clock() // PERIOD_S)
        name = (node, self._members[node], period)
        if period != self._period:
            self._period = period
            self._forget(lambda _node, _epoch, begun: begun < period - 1)
        if name not in self._numbers:
            if not self._free:
                return 0
            self._numbers[name] = self._free.pop()
        return self._numbers[name]

    def tracing(self, node: str) -> Callable[[], int]:
        """`origin` as it is when blocks have come, which that node is asked for now; 0 once it has gone meanwhile."""
        epoch = self._members.get(node)
        return lambda: self.origin(node) if self._members.get(node) == epoch else 0

    def warmth(self) -> Warmth:
        """Of the store now. A pass over columns."""
        hot = last = hot_last = total = 0
        now = self._clock()
        for space in self._spaces.values():
            live, size = space.live(), space.size_class.slot_bytes
            recent = space.index.col("last_use")[live] >= now - HOT_S
            own = space.index.col("ret.origin")[live] == 0
            total += size * len(live)
            hot += size * int(np.count_nonzero(recent))
            last += size * int(np.count_nonzero(own))
            hot_last += size * int(np.count_nonzero(own & recent))
        return Warmth(hot, last, hot_last, total - last)

    def _forget(self, gone: Callable[[str, object, int], bool]) -> None:
        numbers = [number for name, number in self._numbers.items() if gone(*name)]
        if not numbers:
            return
        self._numbers = {name: number for name, number in self._numbers.items() if number not in numbers}
        self._free += numbers
        for space in self._spaces.values():
            blocks = marked(space, numbers)
            space.index.retain(blocks, origin=0)

    def check(self) -> None:
        """AssertionError unless every mark is one that was given."""
        known = {0, *self._numbers.values()}
        assert len(known) == len(self._numbers) + 1, "a number has two meanings"
        assert not known & set(self._free), "a number in use is free"
        for space in self._spaces.values():
            found = set(space.index.col("ret.origin")[space.live()].tolist())
            assert found <= known, f"marks of nobody: {found - known}"


def marked(space: Residents, numbers: list[int]) -> NDArray[np.int32]:
    """The blocks with one of these marks."""
    live = space.live()
    return live[np.isin(space.index.col("ret.origin")[live], numbers)]
