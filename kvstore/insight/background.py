"""Background: prompts that wait to be looked at, and the task that does it in the time there is.

Whoever asks only puts a prompt into a bounded queue. The task takes SHARE of the loop's time at most: after each slice
of SLICE_S it sleeps so much longer. What does not fit into the queue is left out, and counted.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from .facts import Asked

MOST_WAITING = 1024
MOST_WAITING_BYTES = 32 << 20
SHARE = 0.02
SLICE_S = 0.001


class Background:
    """look: one prompt's work, in steps of a millisecond at most. cpu: seconds that this thread has worked."""

    def __init__(self, look: Callable[[Asked], Iterator[None]], cpu: Callable[[], float]) -> None:
        self.skipped = 0
        self.looked = 0
        self.worked_s = 0.0
        self._look = look
        self._cpu = cpu
        self._waiting = deque[Asked]()
        self._waiting_bytes = 0
        self._current: Iterator[None] | None = None
        self._some: asyncio.Event | None = None  # while the task runs

    def put(self, asked: Asked) -> None:
        """Look at it later. About a microsecond."""
        size = len(asked.tokens)
        if len(self._waiting) >= MOST_WAITING or self._waiting_bytes + size > MOST_WAITING_BYTES:
            self.skipped += 1
            return
        self._waiting.append(asked)
        self._waiting_bytes += size
        if self._some is not None:
            self._some.set()

    def catch_up(self) -> None:
        """Look at all that waits, now. For tests, and where nobody waits."""
        while self._step():
            pass

    async def run(self) -> None:
        """Until cancelled."""
        some = self._some = asyncio.Event()
        try:
            while True:
                spent_s = self._slice()
                await asyncio.sleep(spent_s * (1.0 / SHARE - 1.0))
                if self._current is None and not self._waiting:
                    some.clear()
                    await some.wait()
        finally:
            self._some = None

    def forget(self, fingerprint: bytes | None) -> None:
        """Do not look at prompts of this namespace, or of any, that wait."""
        self._current = None
        kept = [each for each in self._waiting if fingerprint not in (None, each.facts.fingerprint)]
        self._waiting = deque(kept)
        self._waiting_bytes = sum(len(each.tokens) for each in kept)

    def _slice(self) -> float:
        """Work for about SLICE_S; what it took."""
        began = self._cpu()
        while self._step() and self._cpu() - began < SLICE_S:
            pass
        spent_s = max(self._cpu() - began, 0.0)
        self.worked_s += spent_s
        return spent_s

    def _step(self) -> bool:
        """False: there was nothing to do."""
        if self._current is None:
            if not self._waiting:
                return False
            asked = self._waiting.popleft()
            self._waiting_bytes -= len(asked.tokens)
            self.looked += 1
            self._current = self._look(asked)
        if next(self._current, _END) is _END:
            self._current = None
        return True


_END = object()
