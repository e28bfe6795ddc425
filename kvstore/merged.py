"""Merged: the trees of one namespace in DRAM and in the lower tier, walked as one.

A run is a row of blocks of the merged tree that has no branch in it; each tier has a leading part of it, or nothing.
Steps are short and stay right when either tree changes between them, so that a walk can give the loop back. Changes
nothing.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..radix import TOKEN_BYTES, PrefixIndex, walk
from .catalog import Catalog
from .residents import Residents

KEYS_AT_ONCE = 512  # hashed in one step: about half a millisecond


class Spot(NamedTuple):
    """A place in one tree: a block, walk.ROOT, or GONE where the tree has nothing. came: when the block did."""

    block: int
    came: float


GONE = Spot(-2, 0.0)
START = Spot(walk.ROOT, 0.0)


@dataclass(frozen=True, slots=True)
class Run:
    """ordinal: of its first block in every prompt. counts, firsts, ends: by tier, how many leading blocks it has, the
    first and the last of them. parent: place of the run above in the order of the walk, -1 = there is none. branches:
    whether anything hangs below."""

    ordinal: int
    counts: tuple[int, ...]
    firsts: tuple[Spot, ...]
    ends: tuple[Spot, ...]
    parent: int
    branches: bool

    @property
    def blocks(self) -> int:
        return max(self.counts)

    @property
    def below(self) -> tuple[Spot, ...]:
        """The place below which the tree goes on."""
        return _deepest(self.ends, self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One tier's tree of the namespace. unit_bytes: what a block takes there."""

    tier: str
    index: PrefixIndex
    unit_bytes: int
    catalog: Catalog | None = None

    def spot(self, block: int | None) -> Spot:
        return GONE if block is None else Spot(block, float(self.index.col("inserted_at")[block]))

    def holds(self, spot: Spot) -> bool:
        return spot is not GONE and walk.there(self.index, spot.block, spot.came)

    def key(self, block: int) -> bytes:
        """Cheap once warm() has run."""
        return self.keys(np.array([block], dtype=np.int32))[0] if self.catalog is not None else self.index.key(block)

    def keys(self, blocks: NDArray[np.int32]) -> list[bytes]:
        """As `key`, of several."""
        return self.catalog.keys(blocks) if self.catalog is not None else self.index.known_keys(blocks)

    def warm(self, block: int) -> Iterator[None]:
        """Hash, in steps, what `key` of this block needs. KeyError when the block leaves meanwhile."""
        if self.catalog is None:
            path = self.index.path(block)
            for at in range(KEYS_AT_ONCE - 1, len(path), KEYS_AT_ONCE):
                self.index.key(int(path[at]))
                yield
            self.index.key(block)


class Merged:
    """space: of DRAM; catalog: of the tier of that name. One of them may be missing."""

    def __init__(self, space: Residents | None, catalog: Catalog | None, lower: str) -> None:
        sides: list[Side] = []
        if space is not None:
            sides.append(Side("dram", space.index, space.unit_bytes))
        if catalog is not None:
            sides.append(Side(lower, catalog.index, catalog.unit_bytes, catalog))
        self.sides: Sequence[Side] = sides

    @property
    def start(self) -> tuple[Spot, ...]:
        """Above everything."""
        return (START,) * len(self.sides)

    def runs(self, spots: tuple[Spot, ...], ordinal: int = 0) -> Iterator[Run]:
        """All runs below a place, parents before children. May be left and taken up again whatever happened between:
        then what came or went meanwhile may be missing."""
        todo = [(spots, ordinal, -1, self.heads(spots))]
        done = 0
        while todo:
            above, first, parent, heads = todo[-1]
            head = next(heads, None)
            if head is None:
                todo.pop()
                continue
            run = self.run(above, head, first, parent)
            if run is None:
                continue
            yield run
            if run.branches:
                todo.append((run.below, first + run.blocks, done, self.heads(run.below)))
            done += 1

    def run(self, above: tuple[Spot, ...], head: bytes, ordinal: int, parent: int = -1) -> Run | None:
        """The run right below a place that begins with this head; None when there is none."""
        firsts = tuple(self._child(side, spot, head) for side, spot in zip(self.sides, above, strict=True))
        rests = [
            walk.rest(side.index, spot.block) if spot is not GONE else _NOTHING
            for side, spot in zip(self.sides, firsts, strict=True)
        ]
        counts = self._counts(rests)
        if not any(counts):
            return None
        ends = tuple(
            side.spot(rest.blocks[count - 1]) if count else GONE
            for side, rest, count in zip(self.sides, rests, counts, strict=True)
        )
        return Run(ordinal, counts, firsts, ends, parent, self._goes_on(_deepest(ends, counts)))

    def children(self, spots: tuple[Spot, ...], ordinal: int) -> Iterator[Run]:
        """The runs right below a place; otherwise as `runs`."""
        for head in self.heads(spots):
            run = self.run(spots, head, ordinal)
            if run is not None:
                yield run

    def at(self, tokens: bytes) -> tuple[Spot, ...]:
        """The place behind a prefix of full blocks."""
        if not tokens:
            return self.start
        matches = [(side, side.index.match(tokens)) for side in self.sides]
        return tuple(
            side.spot(match.last) if match.tokens * TOKEN_BYTES == len(tokens) else GONE for side, match in matches
        )

    def run_to(self, tokens: bytes) -> Run | None:
        """The run that has the last block of a prefix of full blocks; None when no tier has all of it."""
        for side in self.sides:
            match = side.index.match(tokens)
            if tokens and match.tokens * TOKEN_BYTES == len(tokens):
                return self.run_with(side, match.last)
        return None

    def run_with(self, side: Side, block: int) -> Run:
        """The run that has this block of that tier. KeyError when it is not there."""
        spots, path, at = self.start, side.index.path(block), 0
        while True:
            found = self.run(spots, walk.head_of(side.index, int(path[at])), at)
            assert found is not None, "a tree has a block that its walk does not find"
            if at + found.blocks >= len(path):
                return found
            spots, at = found.below, at + found.blocks

    def _counts(self, rests: Sequence[walk.Rest]) -> tuple[int, ...]:
        """How far each tier's blocks reach until the merged tree branches or ends."""
        if len(rests) < 2 or not all(rest.blocks for rest in rests):
            return tuple(len(rest.blocks) for rest in rests)
        common = _common(rests[0], rests[1])
        for (near, far), (side, _) in ((rests, self.sides), (rests[::-1], self.sides[::-1])):
            ended = common == len(near.blocks) < len(far.blocks)
            if ended and not walk.branches(side.index, near.blocks[-1]):
                return tuple(len(rest.blocks) for rest in rests)
        return common, common

    def _goes_on(self, spots: tuple[Spot, ...]) -> bool:
        return any(
            walk.branches(side.index, spot.block)
            for side, spot in zip(self.sides, spots, strict=True)
            if spot is not GONE
        )

    def heads(self, spots: tuple[Spot, ...]) -> Iterator[bytes]:
        """What the blocks right below a place are told apart by, each once."""
        for at, (side, spot) in enumerate(zip(self.sides, spots, strict=True)):
            for head in walk.heads(side.index, spot.block) if side.holds(spot) else ():
                earlier = zip(self.sides[:at], spots, strict=False)
                if all(self._child(other, place, head) is GONE for other, place in earlier):
                    yield head

    def _child(self, side: Side, spot: Spot, head: bytes) -> Spot:
        return side.spot(walk.child(side.index, spot.block, head)) if side.holds(spot) else GONE


_NOTHING = walk.Rest(array("i"), b"")


def _deepest(ends: tuple[Spot, ...], counts: tuple[int, ...]) -> tuple[Spot, ...]:
    return tuple(end if count == max(counts) else GONE for end, count in zip(ends, counts, strict=True))


def _common(left: walk.Rest, right: walk.Rest) -> int:
    """Leading blocks that are the same."""
    count = min(len(left.blocks), len(right.blocks))
    size = len(left.tokens) // len(left.blocks)
    if left.tokens[: count * size] == right.tokens[: count * size]:
        return count
    ours = np.frombuffer(left.tokens, dtype=np.int32, count=count * size // 4)
    theirs = np.frombuffer(right.tokens, dtype=np.int32, count=count * size // 4)
    return int((ours != theirs).argmax()) * 4 // size
