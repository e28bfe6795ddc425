"""What the index answers with."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Match:
    """The known prefix of some tokens at the moment of the question."""

    blocks: Numbers
    """Block numbers, root first; int32, read-only."""
    tokens: int
    """Tokens matched: whole blocks."""

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def last(self) -> int:
        """The deepest matched block, the one to lease; -1 if there is none."""
        return int(self.blocks[-1]) if len(self.blocks) else -1


@dataclass(frozen=True, slots=True)
class Insertion:
    """What `insert` did."""

    blocks: Numbers
    """All blocks of the path, root first; int32."""
    existing: int
    """How many of them, a leading run, were there before and kept their value."""


class Removed(NamedTuple):
    """The facts of a block that has left the index."""

    block: int
    value: int
    hits: int
    last_use: float
    inserted_at: float
    orphan: bool = False
    """Somebody may still be reading it: its payload is free only once `release` hands the block back."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All blocks, parents before children; one row a block."""

    blocks: Numbers
    parents: Numbers
    """Block number of the parent, -1 below the root; int32."""
    tokens: NDArray[np.int32]
    """Token ids, [blocks, block_tokens]."""
    values: NDArray[np.int64]
    hits: NDArray[np.uint32]
    last_use: NDArray[np.float64]
    inserted_at: NDArray[np.float64]
    extras: dict[int, bytes]
    """By block number, for blocks that have any."""
