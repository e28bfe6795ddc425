"""Quantiles: percentiles of any number of durations in fixed memory, within half a percent."""

import math
from array import array

GROWTH = 1.01  # of one bucket's bound to the next: the middle of a bucket is within 0.5 % of all in it
LOWEST_S = 1e-5
_LOG = math.log(GROWTH)
_BUCKETS = math.ceil(math.log(1e5 / LOWEST_S) / _LOG)  # up to 10^5 s, a day and more


class Quantiles:
    """Of seconds. 18 KB, however many. What is outside of 10 µs to 10^5 s counts as the nearest of these; min, max and
    mean are exact."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * (_BUCKETS + 1)))
        self.count = 0
        self.sum_s = 0.0
        self.min_s = math.inf
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        bucket = 0 if seconds <= LOWEST_S else min(_BUCKETS, 1 + int(math.log(seconds / LOWEST_S) / _LOG))
        self._counts[bucket] += 1
        self.count += 1
        self.sum_s += seconds
        self.min_s, self.max_s = min(self.min_s, seconds), max(self.max_s, seconds)

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count if self.count else 0.0

    def at(self, share: float) -> float:
        """The duration that so many (0..1) are not above; 0.0 when there are none."""
        rank, seen = max(1, math.ceil(share * self.count)), 0
        if not self.count or rank == self.count:
            return self.max_s
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                return self._within(bucket)
        return self.max_s

    def curve(self) -> list[tuple[float, float]]:
        """(seconds, share that is not above), one point a bucket that has any; for plots."""
        points: list[tuple[float, float]] = []
        seen = 0
        for bucket, count in enumerate(self._counts):
            if count:
                seen += count
                points.append((self._within(bucket), seen / self.count))
        return points

    def to_json(self) -> dict[str, float | int]:
        """Seconds."""
        if not self.count:
            return {"count": 0}
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        row = {name: round(self.at(share), 6) for name, share in shares.items()}
        ends = {"min": round(self.min_s, 6), "max": round(self.max_s, 6)}
        return {"count": self.count, "mean": round(self.mean_s, 6), **row, **ends}

    def _within(self, bucket: int) -> float:
        """The middle of a bucket, never outside of what was seen."""
        middle = LOWEST_S * GROWTH ** (bucket - 0.5) if bucket else LOWEST_S
        return min(max(middle, self.min_s), self.max_s)
