"""History: a Sample a second for a quarter of an hour, and one in fifteen seconds for six hours. Bounded."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ..stats import StoreStats
from ..types import Receipt
from .names import tier_name
from .served import reused_half
from .types import Sample, TierSample

FINE_S, FINE_SAMPLES = 1.0, 900
COARSE_S, COARSE_SAMPLES = 15.0, 1440
MOST_TIMES = 1024  # of which an interval's median is made


@dataclass(frozen=True, slots=True)
class _Base:
    """Counters when an interval began."""

    misses: Counter[str]
    came: Counter[str]
    left: Counter[str]

    @classmethod
    def of(cls, stats: StoreStats) -> "_Base":
        counters = stats.counters
        return cls(Counter(counters.miss_tokens), Counter(counters.came_bytes), Counter(counters.left_bytes))


class _Interval:
    """One that is running."""

    def __init__(self, began_s: float, base: _Base) -> None:
        self.began_s = began_s
        self._base = base
        self._requests = 0
        self._saved_s = 0.0
        self._tokens: Counter[str] = Counter()
        self._times: dict[bool, list[float]] = {True: [], False: []}  # by whether half of the prompt was reused

    def add(self, receipt: Receipt) -> None:
        self._requests += 1
        self._saved_s += receipt.saved_s or 0.0
        for tier, count in receipt.tokens.items():
            self._tokens[tier_name(tier)] += count
        times = self._times[reused_half(receipt)]
        if receipt.ttft_s > 0 and len(times) < MOST_TIMES:
            times.append(receipt.ttft_s)

    def end(self, now: float, base: _Base, stats: StoreStats) -> Sample:
        came, left = base.came - self._base.came, base.left - self._base.left
        return Sample(
            time_s=now,
            seconds=now - self.began_s,
            requests=self._requests,
            tokens=self._tokens,
            misses=base.misses - self._base.misses,
            ttft_hit_s=median(self._times[True]) if self._times[True] else None,
            ttft_miss_s=median(self._times[False]) if self._times[False] else None,
            saved_s=self._saved_s,
            tiers=_tiers(stats, came, left),
        )


class History:
    """wall: Unix time. stats: the store's, as it is now."""

    def __init__(self, stats: StoreStats, wall: Callable[[], float]) -> None:
        self._wall = wall
        base, now = _Base.of(stats), wall()
        self._fine, self._coarse = _Interval(now, base), _Interval(now, base)
        self._fine_samples = deque[Sample](maxlen=FINE_SAMPLES)
        self._coarse_samples = deque[Sample](maxlen=COARSE_SAMPLES)

    def add(self, receipt: Receipt) -> None:
        self._fine.add(receipt)
        self._coarse.add(receipt)

    def sample(self, stats: StoreStats) -> None:
        """End the running interval, which is to be done once a second."""
        now, base = self._wall(), _Base.of(stats)
        self._fine_samples.append(self._fine.end(now, base, stats))
        self._fine = _Interval(now, base)
        if not 0 <= now - self._coarse.began_s < COARSE_S - FINE_S / 2:  # the wall clock may be set back
            self._coarse_samples.append(self._coarse.end(now, base, stats))
            self._coarse = _Interval(now, base)

    def since(self, since_s: float) -> Sequence[Sample]:
        """Intervals that ended after that Unix time, oldest first: the long ones as far as there are no short ones."""
        begin = self._fine_samples[0].time_s if self._fine_samples else float("inf")
        older = [each for each in self._coarse_samples if each.time_s < begin]
        return [each for each in (*older, *self._fine_samples) if each.time_s > since_s]


def _tiers(stats: StoreStats, came: Mapping[str, int], left: Mapping[str, int]) -> dict[str, TierSample]:
    return {
        tier.name: TierSample(tier.used_bytes, tier.capacity_bytes, came.get(tier.name, 0), left.get(tier.name, 0))
        for tier in stats.tiers
    }
