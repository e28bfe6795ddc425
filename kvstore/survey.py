"""Survey: the runs of one namespace at about one moment, as columns: what a listing is sorted and counted by."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .merged import GONE, Merged, Run, Spot
from .slices import Slices

GATHERED = 64  # runs whose facts are read at once
FACTS = ("hits", "age", "idle", "bytes", "tokens")


@dataclass(frozen=True, slots=True)
class Seen:
    """A run of a survey: by tier, its leading blocks and the last of them."""

    ordinal: int
    counts: tuple[int, ...]
    ends: tuple[Spot, ...]


class Survey:
    """About 130 bytes a run. partial: there are more runs than were looked at."""

    def __init__(self, merged: Merged, block_tokens: int) -> None:
        self.merged = merged
        self.partial = False
        self._block_tokens = block_tokens
        self._facts: list[NDArray[np.float64]] = []  # by gathering: a row a fact
        self._ordinals, self._parents = array("i"), array("i")
        self._counts, self._ends, self._came = array("i"), array("q"), array("d")  # a row a run, a column a tier
        self._below, self._children = array("q"), array("i")

    def __len__(self) -> int:
        return len(self._ordinals)

    async def take(self, slices: Slices, most: int) -> "Survey":
        """Look at `most` runs at most."""
        pending: list[Run] = []
        for run in self.merged.runs(self.merged.start):
            if len(self) + len(pending) >= most:
                self.partial = True
                break
            pending.append(run)
            if len(pending) >= GATHERED:
                self._gather(pending)
                await slices.breathe()
        self._gather(pending)
        await self._add_up(slices)
        return self

    def run(self, place: int) -> Seen:
        """One of them."""
        width = len(self.merged.sides)
        cut = slice(place * width, (place + 1) * width)
        ends = zip(self._ends[cut], self._came[cut], strict=True)
        spots = tuple(GONE if block == GONE.block else Spot(block, came) for block, came in ends)
        return Seen(self._ordinals[place], tuple(self._counts[cut]), spots)

    def below(self, place: int) -> tuple[int, int]:
        """Runs right below one, and blocks in all that hangs below it."""
        return self._children[place], self._below[place]

    def column(self, name: str) -> NDArray[np.float64]:
        """One of FACTS, by run: hits of its first block, seconds since that came and since it was used, bytes in all
        tiers, tokens from the prompt's start to its end."""
        return np.concatenate([np.empty(0), *(part[FACTS.index(name)] for part in self._facts)])

    def _gather(self, pending: list[Run]) -> None:
        """Read the facts of these, in the turn in which they were found."""
        if not pending:
            return
        hits, age, idle, size, tokens = facts = np.zeros((len(FACTS), len(pending)))
        idle[:] = np.inf
        tokens[:] = [(run.ordinal + run.blocks) * self._block_tokens for run in pending]
        for at, side in enumerate(self.merged.sides):
            there = [(row, run.firsts[at].block) for row, run in enumerate(pending) if run.counts[at]]
            rows, firsts = np.array(there, dtype=np.intp).reshape(-1, 2).T
            index, now = side.index, side.index.now()
            hits[rows] = np.maximum(hits[rows], index.col("hits")[firsts])
            age[rows] = np.maximum(age[rows], now - index.col("inserted_at")[firsts])
            idle[rows] = np.minimum(idle[rows], now - index.col("last_use")[firsts])
            size += [run.counts[at] * side.unit_bytes for run in pending]
        self._facts.append(facts)
        for run in pending:
            self._ordinals.append(run.ordinal)
            self._parents.append(run.parent)
            self._counts.extend(run.counts)
            self._ends.extend(spot.block for spot in run.ends)
            self._came.extend(spot.came for spot in run.ends)
        pending.clear()

    async def _add_up(self, slices: Slices) -> None:
        """Parents come before what is below them."""
        width = len(self.merged.sides)
        self._below.frombytes(bytes(8 * len(self)))
        self._children.frombytes(bytes(4 * len(self)))
        for place in range(len(self) - 1, -1, -1):
            above = self._parents[place]
            if above >= 0:
                self._below[above] += self._below[place] + max(self._counts[place * width : (place + 1) * width])
                self._children[above] += 1
            if not place % 512:
                await slices.breathe()


def best(surveys: Sequence[Survey], sort: str, limit: int) -> Iterator[tuple[int, int]]:
    """Places (of survey and run) of the runs to be shown first: by "idle" those used last, else the largest."""
    sign = 1.0 if sort == "idle" else -1.0
    parts: list[NDArray[np.float64]] = [sign * survey.column(sort) for survey in surveys]
    values = np.concatenate([np.empty(0), *parts])
    if limit < len(values):
        edge = np.partition(values, limit - 1)[limit - 1]
        ahead = np.flatnonzero(values < edge)
        chosen = np.concatenate([ahead, np.flatnonzero(values == edge)[: limit - len(ahead)]])
    else:
        chosen = np.arange(len(values))
    starts = [0, *accumulate(len(part) for part in parts)]
    for place in chosen[np.argsort(values[chosen], kind="stable")].tolist():
        owner = bisect_right(starts, place) - 1
        yield owner, place - starts[owner]
