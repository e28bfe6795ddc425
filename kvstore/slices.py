"""Slices: long work on the event loop, cut so that others wait a millisecond or two at most."""

import asyncio
import time
from collections.abc import Callable

SLICE_S = 0.001


class Slices:
    """Call breathe() between steps that each take far less than SLICE_S. clock: seconds, of how long a slice took."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self.worked_s = 0.0
        """In slices that have ended."""

    async def breathe(self) -> None:
        """Give the loop back for a turn when this slice is over."""
        now = self._clock()
        if now - self._began >= SLICE_S:
            self.worked_s += now - self._began
            await asyncio.sleep(0)
            self._began = self._clock()
