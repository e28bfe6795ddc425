"""What the pool's index gains and loses, collected for whoever routes requests by it.

A step notes only numbers and slices of token bytes it has at hand; nothing is hashed. A report goes out every so often,
and only when something changed. Where one was not taken, or too much has come together, all is said anew.
Belongs to the engine's thread.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..connector.base import HbmChange

if TYPE_CHECKING:
    from .pool import KVPool

MAX_BLOCKS = 65_536  # noted and not reported yet; beyond, the whole is said
RETRY_S = 1.0
IDLE_S = 5.0  # without a change, until it is looked whether the store is still the one that was told


class ChangeLog:
    """In the order in which it happened. complete: nothing was left out since take()."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._changes: list[HbmChange] = []
        self._blocks = 0
        self.complete = True

    def __len__(self) -> int:
        return len(self._changes) if self.complete else 1

    def came(self, path: NDArray[np.int32], first: int, tokens: bytes, block_bytes: int) -> None:
        """Blocks `first`.. of a path are new. tokens: of the whole path."""
        fresh = path[first:]
        if self._room(len(fresh)):
            own = tokens[first * block_bytes : len(path) * block_bytes]
            self._changes.append(HbmChange(fresh.astype(np.uint32), own, int(path[first - 1]) if first else -1))

    def left(self, blocks: NDArray[np.int32]) -> None:
        """These are gone, tips first."""
        if len(blocks) and self._room(len(blocks)):
            self._changes.append(HbmChange(blocks.astype(np.uint32)))

    def take(self) -> list[HbmChange]:
        changes, self._changes, self._blocks = self._changes, [], 0
        self.complete = True
        return changes

    def _room(self, blocks: int) -> bool:
        self._blocks += blocks
        if self._blocks > self._max_blocks:
            self._changes.clear()
            self.complete = False
        return self.complete


class Reports:
    """report(changes, whole): whether it was taken; None: nobody wants to know, and nothing is noted in the pool."""

    def __init__(
        self,
        pool: "KVPool",
        report: Callable[[list[HbmChange], bool], bool] | None,
        *,
        every_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._report = report if pool.index is not None else None
        self._every_s = every_s
        self._clock = clock
        self._due_s = clock()  # if there is something to say
        self._look_s = self._due_s  # if not

    def next_s(self) -> float | None:
        """When send() is to be called although no step is run; None if never."""
        if self._report is None:
            return None
        return self._due_s if self._dirty else self._look_s

    def send(self) -> None:
        """When it is time."""
        now, due_s = self._clock(), self.next_s()
        if self._report is None or due_s is None or now < due_s:
            return
        pool = self._pool
        self._due_s, self._look_s = now + self._every_s, now + IDLE_S
        if pool.log is not None and pool.log.complete and self._report(pool.log.take(), False):
            return
        taken = self._report(self._whole(), True)
        pool.log = ChangeLog() if taken else None
        if not taken:
            self._due_s = now + RETRY_S

    @property
    def _dirty(self) -> bool:
        return self._pool.log is None or len(self._pool.log) > 0

    def _whole(self) -> list[HbmChange]:
        assert self._pool.index is not None
        runs = self._pool.index.runs()
        return [HbmChange(blocks.astype(np.uint32), tokens, above) for blocks, _, above, tokens in runs]
