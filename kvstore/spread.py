"""Spread: how often a quantity was how large, in fixed bounds: what a Prometheus histogram is made of. Fixed memory."""

import bisect
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

LATENCY_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
RESIDENCE_BOUNDS_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)


class Spread:
    """bounds: rising; a value counts in the first one that is not below it, or above them all."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spread) and vars(self) == vars(other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it changes

    @property
    def total(self) -> int:
        """Values, all told."""
        return sum(self.counts)

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add_all(self, values: NDArray[np.floating]) -> None:
        """Many at once; about 10 us."""
        places = np.searchsorted(np.asarray(self.bounds), values, side="left")
        for place, count in enumerate(np.bincount(places, minlength=len(self.counts)).tolist()):
            self.counts[place] += count
        self.sum += float(values.sum())

    def buckets(self) -> Iterator[tuple[str, float]]:
        """(upper bound, how many were not above it), the last one "+Inf", as Prometheus wants them."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        yield from zip(names, accumulate(self.counts), strict=True)
