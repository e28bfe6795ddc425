"""Runner: the two phases: a few requests one after another, then many at their own times. One event loop.

Open loop: a request is due when its user wants it, however the endpoint is doing. Where our own limit of requests
under way holds it back, its wait counts in the latencies from when it was due, and what would have to wait longer than
the timeout is not sent, and counted.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

from .endpoint import Endpoint
from .exchange import Clock, exchange
from .outcome import Outcome, Status
from .slo import Slo
from .talks import Prompt, Talk
from .tally import Tally

MAX_TALKS = 4096  # conversations open at a time; more wait to begin


@dataclass(frozen=True, slots=True)
class Limits:
    """duration_s: no request is due later; inf = as the arrivals say. requests: no more are sent at the target rate, 0
    = no such limit. alone: how many are sent one by one before. concurrency: most that are under way at a time.
    timeout_s: for one request, from when it is sent."""

    duration_s: float = 60.0
    requests: int = 0
    alone: int = 5
    concurrency: int = 256
    timeout_s: float = 120.0


class Runner:
    """What happens can be read from another task meanwhile: phase, tally, in_flight."""

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        slo: Slo,
        rng: random.Random,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._endpoint, self._limits, self._slo, self._rng, self._clock = endpoint, limits, slo, rng, clock
        self._room = asyncio.Semaphore(limits.concurrency)
        self._talks = asyncio.Semaphore(MAX_TALKS)
        self._begun = 0
        self._end_s = float("inf")
        self.phase = ""
        self.tally: Tally | None = None
        self.in_flight = 0
        self.phases: dict[str, Tally] = {}

    async def run(self, alone: Iterable[tuple[float, Talk]], load: Iterable[tuple[float, Talk]]) -> None:
        """Both phases; `phases` has what was measured, also when this is cancelled."""
        if self._limits.alone > 0:
            self._enter("alone")
            await self._one_by_one(alone)
        tally = self._enter("load")
        self._end_s = tally.start_s + self._limits.duration_s
        async with asyncio.TaskGroup() as group:
            await self._dispatch(load, tally, group)

    def _enter(self, phase: str) -> Tally:
        self.phase = phase
        self.tally = self.phases[phase] = Tally(self._slo, self._rng, self._clock())
        return self.tally

    async def _one_by_one(self, talks: Iterable[tuple[float, Talk]]) -> None:
        """Each request when the former has ended; nobody waits to think."""
        tally, left = self.phases["alone"], self._limits.alone
        for _, talk in talks:
            prompt: Prompt | None = talk.begin()
            while prompt is not None and left > 0:
                left -= 1
                outcome = await self._send(talk, prompt, self._clock(), tally)
                following = talk.answered(outcome.text) if outcome.status is Status.OK else None
                prompt = following[1] if following else None
            if left <= 0:
                return

    async def _dispatch(self, talks: Iterable[tuple[float, Talk]], tally: Tally, group: asyncio.TaskGroup) -> None:
        for at_s, talk in talks:
            due_s = tally.start_s + at_s
            if due_s >= self._end_s:
                tally.due_until_s = self._end_s
                return
            if self._full():
                return
            if self._clock() - due_s > self._limits.timeout_s:
                self._begun += 1
                tally.never_sent(due_s)
                await asyncio.sleep(0)
                continue
            self._begun += 1
            prompt = talk.begin()  # before it is due: making a long text takes milliseconds
            await self._until(due_s)
            await self._talks.acquire()
            await self._room.acquire()
            group.create_task(self._hold(talk, prompt, due_s, tally))

    async def _hold(self, talk: Talk, prompt: Prompt, due_s: float, tally: Tally) -> None:
        """One talk to its end; it comes with room for its first request."""
        try:
            while True:
                try:
                    outcome = await self._send(talk, prompt, due_s, tally)
                finally:
                    self._room.release()
                following = talk.answered(outcome.text) if outcome.status is Status.OK else None
                if following is None:
                    return
                think_s, prompt = following
                due_s = outcome.end_s + think_s
                if due_s >= self._end_s or self._full():
                    return
                self._begun += 1
                await self._until(due_s)
                await self._room.acquire()
        finally:
            self._talks.release()

    async def _send(self, talk: Talk, prompt: Prompt, due_s: float, tally: Tally) -> Outcome:
        outcome = Outcome(prompt.kind, due_s, sent_s=self._clock())
        tally.starts(due_s, outcome.sent_s)
        self.in_flight += 1
        try:
            await exchange(
                self._endpoint,
                prompt,
                outcome,
                clock=self._clock,
                timeout_s=self._limits.timeout_s,
                keep_text=talk.reads,
            )
        finally:
            self.in_flight -= 1
            tally.ends(outcome)
        return outcome

    def _full(self) -> bool:
        return 0 < self._limits.requests <= self._begun

    async def _until(self, due_s: float) -> None:
        wait_s = due_s - self._clock()
        if wait_s > 0:
            await asyncio.sleep(wait_s)


async def until_stopped(work: "asyncio.Task[None]", stop: asyncio.Event) -> bool:
    """Wait for `work`, or for `stop`, which ends it. True when it was stopped. Raises what the work raised."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            return False
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return True
    finally:
        stopping.cancel()
