"""Row: one figure and its limit; and how they are taken."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import KvterraceError

GB = 1e9


class BenchError(KvterraceError):
    """Something cannot be measured here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Row:
    """value and limit in `unit`; of times ("ms") less is better. limit_name: what the limit is, "" = there is none."""

    name: str
    value: float
    unit: str
    limit: float = 0.0
    limit_name: str = ""

    @property
    def ratio(self) -> float | None:
        """Of the limit: 1.0 is all that is possible. None where there is none."""
        if not self.limit or not self.value:
            return None
        return self.limit / self.value if self.unit == "ms" else self.value / self.limit


def timed(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds."""
    began = clock()
    action()
    return clock() - began


def take_turns(
    actions: Sequence[Callable[[], object]], budget_s: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Median seconds of each, measured in turns, so that what else the machine does meets all of them: once to warm up,
    then for budget_s, three times at least and a hundred at most."""
    for action in actions:
        action()
    seconds: list[list[float]] = [[] for _ in actions]
    end = clock() + budget_s
    while len(seconds[0]) < 3 or (clock() < end and len(seconds[0]) < 100):
        for taken, action in zip(seconds, actions, strict=True):
            taken.append(timed(action, clock))
    return [statistics.median(taken) for taken in seconds]
