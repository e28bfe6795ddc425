"""WhatIf: what a least-recently-used cache of any size would have hit, from one pass over what was asked for.

SHARDS (Waldspurger, Park, Garthwaite, Ahmad: FAST 2015) of fixed size: only blocks whose hash is below a threshold are
followed, and the threshold sinks as more come, so that no more than `most` are followed at once. A followed block
stands for one over its chance of being followed. The bytes used since a block's last use are its distance: a cache of
that size or more would have had it.

Two things are fitted to prompts. Their first blocks are few and asked for most, so they have a higher chance
(`_boosts`): whether the one block that all prompts begin with is followed must not be a matter of luck. And the number
of references is known, that of first references is estimated well (each counts once): what chance made too many or too
few of repeated ones is set right in proportion. (The paper sets it right at distance 0, which is right for one hot
block and off by ten points for forty warm heads.)

A prompt's blocks are used leaf first, as the store does it: a head is younger than what hangs below it, so that what is
hit is always a prefix. And a prompt is looked up before it is stored.

`most` followed blocks take about 220 bytes each: 1.8 MB. Older references count half as much after HALF_LIFE_S.
"""

from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from .types import CurvePoint

MOST = 8192
HALF_LIFE_S = 86_400.0
_FADE_S = 3600.0  # how often they are made to count less
_BOOST = 32.0  # the first block's chance, in those of a late one; the next ones' fall as 1/n
_PER_OCTAVE = 16
_FIRST_OCTAVE, _LAST_OCTAVE = 12, 52  # 4 KiB, a page, to 4 PiB
_STEPS = np.arange((_LAST_OCTAVE - _FIRST_OCTAVE) * _PER_OCTAVE + 1, dtype=np.float64)
_EDGES: NDArray[np.float64] = np.exp2(_STEPS / _PER_OCTAVE + _FIRST_OCTAVE)
_WHOLE = float(1 << 64)


class WhatIf:
    """most: blocks followed at once. horizon_bytes: of what is farther away than that nothing need be known."""

    def __init__(self, most: int = MOST, horizon_bytes: float = float(1 << 44)) -> None:
        self.horizon_bytes = horizon_bytes
        self.references = 0.0
        """Blocks asked for; older ones count less."""
        self._most = most
        self._threshold = _WHOLE
        self._place: dict[int, int] = {}  # block -> its place in the order of use
        self._next = 0
        # By place: what the block stands for, 0 = nothing is there; its own size, and its boost.
        self._weights: NDArray[np.float64] = np.zeros(2 * most)
        self._sizes: NDArray[np.float64] = np.zeros(2 * most)
        self._boosts: NDArray[np.float64] = np.ones(2 * most)
        self._hits: NDArray[np.float64] = np.zeros(len(_EDGES) + 1)  # references by distance: not above _EDGES[i]
        self._cold = 0.0  # references to what was not seen before
        self._faded_s: float | None = None

    @property
    def sampled_share(self) -> float:
        """Of all blocks but the first ones of prompts, those that are followed."""
        return self._threshold / _WHOLE

    def add(self, now: float, blocks: NDArray[np.uint64], size_bytes: int) -> None:
        """One prompt asked for these blocks, from its first; size_bytes each."""
        self._fade(now)
        self.references += len(blocks)
        boosts = _boosts(len(blocks))
        if self._threshold < _WHOLE:
            followed = blocks < self._threshold * boosts
            blocks, boosts = blocks[followed], boosts[followed]
        if not len(blocks):
            return
        names: list[int] = blocks.tolist()
        places = np.fromiter(map(self._place.get, names, repeat(-1)), dtype=np.int64, count=len(names))
        counts, old = 1.0 / self._chance(boosts), places >= 0
        if old.any():
            known = places[old]
            used = np.cumsum(self._weights[: self._next])
            distances: NDArray[np.float64] = used[-1] - used[known] + self._sizes[known]
            np.add.at(self._hits, np.searchsorted(_EDGES, distances), counts[old])
            self._weights[known] = 0.0
        self._cold += float(counts[~old].sum())
        self._use(names, counts, boosts, size_bytes)
        if len(self._place) > self._most:
            self._shrink()

    def shares(self, capacities: Sequence[int]) -> list[float]:
        """Of the references, those that a cache of each of these sizes would have hit."""
        followed = float(self._hits.sum())
        if not self.references or not followed:
            return [0.0] * len(capacities)
        hits = self._hits * (max(self.references - self._cold, 0.0) / followed)
        below = np.concatenate([[0.0], np.cumsum(hits[:-1])])  # not above each edge; of sizes below the first, none
        edges = np.concatenate([[_EDGES[0] / 2], _EDGES])
        found = np.interp(np.log2(np.maximum(np.asarray(capacities, dtype=np.float64), 1.0)), np.log2(edges), below)
        return np.clip(found / self.references, 0.0, 1.0).tolist()

    def curve(self, capacities: Sequence[int]) -> tuple[CurvePoint, ...]:
        """The same as points, by rising capacity."""
        chosen = sorted(set(capacities))
        return tuple(CurvePoint(size, share) for size, share in zip(chosen, self.shares(chosen), strict=True))

    def _chance(self, boosts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of blocks of these boosts, to be followed."""
        return np.minimum(self.sampled_share * boosts, 1.0)

    def _use(self, names: list[int], counts: NDArray[np.float64], boosts: NDArray[np.float64], size_bytes: int) -> None:
        """These are the youngest now, the first one of all."""
        if self._next + len(names) > len(self._sizes):
            self._compact(len(names))
        new = slice(self._next, self._next + len(names))
        self._place.update(zip(reversed(names), range(new.start, new.stop), strict=True))
        self._weights[new] = counts[::-1] * size_bytes
        self._sizes[new] = size_bytes
        self._boosts[new] = boosts[::-1]
        self._next = new.stop

    def _compact(self, room: int) -> None:
        """Close the gaps that former uses left. O(most), once in so many references."""
        names, places = self._followed()
        order = np.argsort(places)
        length, kept = max(2 * self._most, len(names) + room), places[order]
        for column in ("_weights", "_sizes", "_boosts"):
            grown = np.zeros(length)
            grown[: len(kept)] = getattr(self, column)[kept]
            setattr(self, column, grown)
        self._place = dict(zip(names[order].tolist(), range(len(names)), strict=True))
        self._next = len(names)

    def _shrink(self) -> None:
        """Follow fewer: first not those beyond the horizon, then those with the highest hashes. O(most)."""
        names, places = self._followed()
        used = np.cumsum(self._weights[: self._next])
        stay = used[-1] - used[places] <= self.horizon_bytes
        target = self._most * 7 // 8
        if int(np.count_nonzero(stay)) > target:
            ranks = names / self._boosts[places]
            self._threshold = float(np.partition(ranks[stay], target)[target])
            stay &= ranks < self._threshold
        self._weights[places[~stay]] = 0.0
        self._place = dict(zip(names[stay].tolist(), places[stay].tolist(), strict=True))
        left = places[stay]
        self._weights[left] = self._sizes[left] / self._chance(self._boosts[left])

    def _followed(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """All, and their places."""
        count = len(self._place)
        names = np.fromiter(self._place.keys(), dtype=np.uint64, count=count)
        return names, np.fromiter(self._place.values(), dtype=np.int64, count=count)

    def _fade(self, now: float) -> None:
        if self._faded_s is None:
            self._faded_s = now
        if now - self._faded_s >= _FADE_S:
            less = 0.5 ** ((now - self._faded_s) / HALF_LIFE_S)
            self._hits *= less
            self._cold *= less
            self.references *= less
            self._faded_s = now


def _boosts(count: int) -> NDArray[np.float64]:
    """Of the first `count` blocks of a prompt."""
    return np.maximum(_BOOST / np.arange(1, count + 1), 1.0)
