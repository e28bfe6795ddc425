"""Breaker: keeps requests from a device that fails. Pure: time arrives as an argument of its maker.

Closed: everything passes. After `threshold` failures in a row, or one that is sure to repeat, it opens: nothing passes
but one probe whenever the back-off is over. A success closes it, a failure doubles the back-off.
"""

from collections.abc import Callable

FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0


class Breaker:
    """what: it stops, for people ("reads"). threshold: failures in a row that open it."""

    def __init__(self, what: str, clock: Callable[[], float], threshold: int = 3) -> None:
        self._what = what
        self._clock = clock
        self._threshold = threshold
        self._failures = 0
        self._backoff_s = 0.0  # 0 = closed
        self._probe_at = 0.0
        self._probing = False
        self._why = ""

    @property
    def closed(self) -> bool:
        return not self._backoff_s

    @property
    def ready(self) -> bool:
        """Whether allow() would say yes."""
        return self.closed or self._clock() >= self._probe_at

    def allow(self) -> bool:
        """Whether a request may go to the device now. One that may while it is open is the probe; if nothing is heard
        of it, another may go after as long again."""
        if self.closed:
            return True
        if not self.ready:
            return False
        self._probe_at = self._clock() + self._backoff_s
        self._probing = True
        return True

    def success(self) -> None:
        self._failures = 0
        self._backoff_s = 0.0

    def failure(self, why: str, *, sure: bool = False) -> bool:
        """sure: it will fail again, so do not wait for more. True when this one opens it."""
        self._failures += 1
        was_closed = self.closed
        if was_closed and self._failures < self._threshold and not sure:
            return False
        if not was_closed and not self._probing:
            return False  # it was on its way before the breaker opened
        self._probing = False
        self._why = why
        self._backoff_s = FIRST_BACKOFF_S if was_closed else min(2 * self._backoff_s, MAX_BACKOFF_S)
        self._probe_at = self._clock() + self._backoff_s
        return was_closed

    def state(self) -> str:
        """For people; "" while it is closed."""
        if self.closed:
            return ""
        left = max(0.0, self._probe_at - self._clock())
        return f"{self._what} paused: {self._why}; next try in {left:.0f} s"
