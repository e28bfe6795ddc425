"""What the index answers with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

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


@dataclass(frozen=True, slots=True, eq=False)
class Removals(Sequence[Removed]):
    """Blocks that have left the index, a column a fact; row by row it is a sequence of Removed."""

    blocks: Numbers
    values: NDArray[np.int64]
    hits: NDArray[np.uint32]
    last_use: NDArray[np.float64]
    inserted_at: NDArray[np.float64]
    orphans: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, at: int) -> Removed: ...
    @overload
    def __getitem__(self, at: slice) -> "Removals": ...
    def __getitem__(self, at: int | slice) -> "Removed | Removals":
        cut = [column[at] for column in self._columns()]
        return Removals(*cut) if isinstance(at, slice) else Removed(*(fact.item() for fact in cut))

    def __iter__(self) -> Iterator[Removed]:
        return map(Removed, *(column.tolist() for column in self._columns()))

    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.blocks, self.values, self.hits, self.last_use, self.inserted_at, self.orphans


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
