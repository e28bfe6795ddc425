"""Eviction order: which leaf of the tree gives up its tail next. The contract; each policy has a file of its own.

A policy sees blocks by number and leaves by id, and only ever offers leaves: a tree is evicted from its tips, so what
lies under a lease or above a live block is never asked about.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .columns import Columns

Numbers = NDArray[np.int32]
RUN = 128
"""Blocks of one leaf looked at together: bounds the work for one that goes alone."""


class LeafView(Protocol):
    """What a policy may ask of the index."""

    def __len__(self) -> int:
        """Blocks in the tree; those that `victim` named last are counted out before it is asked again."""
        ...

    @property
    def pinned(self) -> int:
        """How many of them are marked pinned."""
        ...

    def now(self) -> float:
        """The clock that the column `last_use` is written by, seconds."""
        ...

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

    def renewed(self, blocks: Numbers) -> None:
        """Place these blocks as if they had just been used, but count no hit."""
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
        """These blocks of one leaf are leaving the tree, tail first; not always those that this policy named."""
        ...

    def dropped(self, blocks: Numbers) -> None:
        """These blocks left the tree because their owner removed them."""
        ...

    def check(self, leaves: set[int]) -> None:
        """AssertionError unless every one of these evictable leaves would be found."""
        ...


def leading(agrees: NDArray[np.bool_]) -> int:
    """How many of the first entries are true, of one or more."""
    first = int(agrees.argmin())
    return len(agrees) if agrees[first] else first
