"""Leases: the right to read or to fill slots. Held by a session, ended once; a leased slot is never reused."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..proto import RetentionRange


@dataclass(slots=True, eq=False)
class ReadLease:
    """Pins the path down to its last block.

    path:   int32 block numbers from the root on, those not wanted by the reader included.
    slots:  int64 pages of the blocks from ordinal `first` on: what the reader may be copying.
    """

    id: int
    path: NDArray[np.int32]
    first: int
    slots: NDArray[np.int64]


@dataclass(slots=True, eq=False)
class WriteLease:
    """Slots being filled; invisible until committed. Pins the path above them, so that no suffix is orphaned.

    tokens:    packed, up to the end of the last block to write.
    path:      int32 block numbers of the blocks above that were there when it began; fewer than `first` when those in
               between are on their way from a lower tier.
    first:     ordinal of the first block to write.
    slots:     int64 pages, one for each block from `first` on.
    traces:    the blocks' names among the ghosts.
    retention: of the blocks, by ordinal.
    void:      the namespace was cleared meanwhile: commit must not bring the blocks back.
    """

    id: int
    tokens: bytes
    path: NDArray[np.int32]
    first: int
    slots: NDArray[np.int64]
    traces: list[int]
    retention: Sequence[RetentionRange] = ()
    void: bool = False
