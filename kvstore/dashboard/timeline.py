"""Timeline: the last so many seconds of a history as columns of a chart, brought up to date sample by sample.

A column begins at a whole multiple of its width, so that what is drawn stays in place while time goes on.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..insight.types import Sample

COLUMNS = 90
WINDOWS_S: Mapping[str, float] = {"5 min": 300.0, "15 min": 900.0, "6 hours": 21_600.0}
_JUST_S = 1e-3  # a sample that ended on a column's begin was within the one before


class Column:
    """What happened within its width. The two times: medians of the samples', None = there were none."""

    __slots__ = ("_hits", "_misses", "misses", "requests", "tokens", "ttft_hit_s", "ttft_miss_s")

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.misses: dict[str, int] = {}
        self.requests = 0
        self.ttft_hit_s: float | None = None
        self.ttft_miss_s: float | None = None
        self._hits: list[float] = []
        self._misses: list[float] = []

    def add(self, sample: Sample) -> None:
        self.requests += sample.requests
        _add(self.tokens, sample.tokens)
        _add(self.misses, sample.misses)
        if sample.ttft_hit_s is not None:
            self._hits.append(sample.ttft_hit_s)
            self.ttft_hit_s = round(statistics.median(self._hits), 5)
        if sample.ttft_miss_s is not None:
            self._misses.append(sample.ttft_miss_s)
            self.ttft_miss_s = round(statistics.median(self._misses), 5)


class Timeline:
    """window_s: how far back it goes."""

    def __init__(self, window_s: float) -> None:
        self.width_s = window_s / COLUMNS
        self._first = 0  # ordinal of the first column, in widths since 1970
        self._columns: deque[Column] = deque((Column() for _ in range(COLUMNS)), maxlen=COLUMNS)

    @property
    def start_s(self) -> float:
        """Unix time at which the first column begins."""
        return self._first * self.width_s

    @property
    def columns(self) -> Sequence[Column]:
        """Oldest first; the last one has only begun."""
        return self._columns

    def bring(self, now_s: float, samples: Iterable[Sample]) -> None:
        """Up to now. samples: those that came since the last time, in order."""
        self._move(now_s)
        for each in samples:
            place = int((each.time_s - _JUST_S) // self.width_s) - self._first
            if 0 <= place < COLUMNS:
                self._columns[place].add(each)

    def rates(self, now_s: float) -> Iterator[Mapping[str, float]]:
        """Tokens a second by tier, of each column."""
        last_s = max(now_s - self.start_s - (COLUMNS - 1) * self.width_s, 1.0)
        for place, column in enumerate(self._columns):
            seconds = self.width_s if place < COLUMNS - 1 else min(last_s, self.width_s)
            yield {tier: round(count / seconds, 1) for tier, count in column.tokens.items() if count}

    def tokens(self) -> Mapping[str, int]:
        """By tier, all told."""
        total: dict[str, int] = {}
        for each in self._columns:
            _add(total, each.tokens)
        return total

    def misses(self) -> Mapping[str, int]:
        """Tokens by reason, all told."""
        total: dict[str, int] = {}
        for each in self._columns:
            _add(total, each.misses)
        return total

    def requests(self) -> int:
        """All told."""
        return sum(each.requests for each in self._columns)

    def _move(self, now_s: float) -> None:
        first = int(now_s // self.width_s) - COLUMNS + 1
        ahead = first - self._first
        if not 0 <= ahead < COLUMNS:  # the first time, after a long pause, or the clock was set back
            ahead = COLUMNS
        self._columns.extend(Column() for _ in range(ahead))
        self._first = first


class Timelines:
    """One for each window, over what comes in order of time."""

    def __init__(self) -> None:
        self._of = {name: Timeline(seconds) for name, seconds in WINDOWS_S.items()}
        self.until_s = 0.0
        """Unix time of the last sample that is in them."""

    def __getitem__(self, window: str) -> Timeline:
        return self._of[window]

    def bring(self, now_s: float, samples: Sequence[Sample]) -> None:
        """Up to now. samples: all that ended after `until_s`."""
        for each in self._of.values():
            each.bring(now_s, samples)
        if samples:
            self.until_s = samples[-1].time_s


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count
