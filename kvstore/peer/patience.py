"""Patience: how long calls to one peer usually take, and whether one takes too long now. Used from one event loop.

A peer that hangs is noticed by the first call that is late, not only when it has failed: whoever would ask it meanwhile
asks somebody else, or computes.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

LEAST_S = 0.25  # however fast it usually is: its process, or this one, may have been busy
TIMES = 4.0  # the usual time that a call may take
FIRST_BYTES_S = 10e6  # until anything is known
_WEIGHT = 0.2  # of the latest call in what is usual


class Call:
    """One under way. due: when it is late."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.late = False  # once it has ended


class Patience:
    """See the module."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._s_per_byte = 0.0
        self._calls: dict[Call, int] = {}  # with what they bring

    @property
    def late(self) -> bool:
        """Whether a call takes too long now."""
        now = self._clock()
        return any(now >= call.due for call in self._calls)

    @contextmanager
    def call(self, size_bytes: int) -> Generator[Call]:
        """Around one call for at most so many bytes; it tells nothing about what is usual if it fails."""
        began = self._clock()
        total = size_bytes + sum(self._calls.values())  # they share what there is
        call = Call(began + LEAST_S + self.usual_s(total))
        self._calls[call] = size_bytes
        try:
            yield call
            each = (self._clock() - began) / max(size_bytes, 1)
            self._s_per_byte += (each - self._s_per_byte) * (_WEIGHT if self._s_per_byte else 1.0)
        finally:
            call.late = self._clock() >= call.due
            del self._calls[call]

    def usual_s(self, size_bytes: int) -> float:
        """What so many bytes may take beyond LEAST_S."""
        return TIMES * size_bytes * self._s_per_byte if self._s_per_byte else size_bytes / FIRST_BYTES_S
