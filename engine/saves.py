"""Saves: which blocks the store was offered, which are on their way, and what that keeps pinned until its SaveDone.

Each block of the index is marked: saved, in flight, or how often it fell short. Belongs to the engine's thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..connector.base import SaveDone
from .pool import KVPool
from .sequence import Sequence
from .stats import EngineStats

LOST_AFTER_S = 30.0  # a save or an abandoned load without an end is not waited for any longer
SAVE_BATCH_BLOCKS = 8  # generated blocks are saved by so many, and the rest at the end

# "saved" column of the index: tries that fell short (from MAX_TRIES on it is left alone), or one of
IN_FLIGHT = 254
SAVED = 255
MAX_TRIES = 3


@dataclass(slots=True)
class _Save:
    path: list[int]  # blocks, root first; the last one is pinned
    start: int
    tries: list[int]  # of path[start:], before this one
    deadline_s: float


class Saves:
    """Decides and remembers; the connector is the caller's."""

    def __init__(self, pool: KVPool, stats: EngineStats, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._stats = stats
        self._clock = clock
        self._open: dict[tuple[str, int], _Save] = {}
        if pool.index is not None:
            pool.index.column("saved", np.uint8, 0)

    @property
    def pins(self) -> list[list[int]]:
        """Block paths that saves in flight keep."""
        return [save.path for save in self._open.values()]

    @property
    def deadlines(self) -> list[float]:
        """Until when each of those in flight is waited for."""
        return [save.deadline_s for save in self._open.values()]

    def begin(self, seq: Sequence, *, last: bool) -> int | None:
        """The first of the sequence's shared blocks that the connector is to be given now, to the last of them; None:
        there is nothing to save."""
        full = seq.table.shared
        small = seq.output_tokens > 0 and full - seq.saved < SAVE_BATCH_BLOCKS and not last
        if full <= seq.saved or small:
            return None
        path = list(seq.table.blocks)
        missing = np.flatnonzero(self._marks[path[seq.saved :]] < MAX_TRIES)
        start = seq.saved + int(missing[0]) if len(missing) else full
        seq.saved = full
        if start == full:
            return None
        if self._open and self._pinned_with(path) > self._pool.num_pages // 2:
            self._stats.dropped_saves += full - start  # the next sequence that uses these blocks offers them again
            return None
        self._pool.pin(path[-1])
        tries = [int(mark) for mark in self._marks[path[start:]]]
        self._open[seq.key, start] = _Save(path, start, tries, self._clock() + LOST_AFTER_S)
        self._marks[path[start:]] = IN_FLIGHT
        return start

    def done(self, done: SaveDone) -> None:
        """One ended; what nobody waited for is counted."""
        save = self._open.pop((done.request_id, done.start), None)
        if save is None:
            self._stats.stray_events += 1
            return
        self._stats.saved_blocks += done.saved
        if done.saved >= len(save.tries):
            self._marks[save.path[save.start :]] = SAVED
        else:
            # Dropped, or there already, or without a parent because the store evicted what we thought it had: the next
            # user of this path offers all of it once more, and the store takes what it lacks.
            self._marks[save.path[save.start :]] = [min(tries + 1, MAX_TRIES) for tries in save.tries]
            above = np.asarray(save.path[: save.start], dtype=np.int64)
            self._marks[above[self._marks[above] == SAVED]] = MAX_TRIES - 1
        self._pool.unpin(save.path[-1])

    def known(self, blocks: list[int]) -> None:
        """The store has these: they came from there."""
        self._marks[blocks] = SAVED

    def _pinned_with(self, path: list[int]) -> int:
        """Pages that saves would pin with this one more; exact where it matters."""
        paths = [path, *self.pins]
        most = sum(len(pinned) for pinned in paths)
        return most if most <= self._pool.num_pages // 2 else len(set().union(*paths))

    @property
    def _marks(self) -> NDArray[np.uint8]:
        """The index's column; it moves when the index grows, so it is never kept."""
        assert self._pool.index is not None
        return self._pool.index.col("saved")
