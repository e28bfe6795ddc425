"""Workers: threads that make blocking device calls for the event loop, and the page-aligned memory they work in.

A job begins once, in one thread, or not at all: `cancel` says whether it was in time. The threads are daemons, so that
a device that never answers cannot keep the process from ending.
"""

import asyncio
import contextlib
import mmap
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ....proto import PAGE_BYTES

T = TypeVar("T")


MAX_KEPT_BYTES = 16 << 20


class Scratch:
    """Page-aligned memory of one thread, kept between jobs unless it is unusually large. What is handed out is
    overwritten by the next job."""

    def __init__(self, turns: threading.Semaphore) -> None:
        self._areas: dict[str, memoryview] = {}
        self._turns = turns
        self._turn_of: Job[Any] | None = None
        self.job: Job[Any] | None = None
        """Which the thread works on."""

    def take(self, name: str, count: int) -> memoryview:
        """`count` pages, of any content."""
        size = count * PAGE_BYTES
        area = self._areas.get(name)
        if area is None or len(area) < size:
            area = aligned(size)
            if size <= MAX_KEPT_BYTES:
                self._areas[name] = area
        return area[:size]

    def take_turn(self) -> None:
        """Wait until this thread may use the device, and begin the job. Withdrawn: it was cancelled meanwhile."""
        assert self.job is not None
        if self._turn_of is not self.job:
            self._turns.acquire()
            self._turn_of = self.job
            self.job.begin()

    def end_turn(self) -> None:
        """The device is not needed any more: another thread may use it while this one computes."""
        if self._turn_of is not None:
            self._turn_of = None
            self._turns.release()


def aligned(size: int) -> memoryview:
    """Writable bytes, zero, that begin at a page."""
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


class Withdrawn(Exception):
    """The job was cancelled before it began."""


class Job(Generic[T]):
    """Something a worker will do. future: its result, on the loop; cancelled with the job."""

    def __init__(
        self, run: Callable[[Scratch], T], loop: asyncio.AbstractEventLoop, clock: Callable[[], float]
    ) -> None:
        self.future: asyncio.Future[T] = loop.create_future()
        self.began_s: float | None = None
        self.seconds = 0.0  # that it took
        self._run = run
        self._loop = loop
        self._clock = clock
        self._lock = threading.Lock()
        self._over = False

    def cancel(self) -> bool:
        """True: it will not begin. False: it runs, or has run."""
        with self._lock:
            if self.began_s is not None or self._over:
                return False
            self._over = True
        self.future.cancel()
        return True

    def begin(self) -> None:
        """From now on it cannot be cancelled. Withdrawn: it has been."""
        with self._lock:
            if self._over:
                raise Withdrawn
            self.began_s = self._clock()

    def work(self, scratch: Scratch) -> None:
        """In the worker's thread."""
        try:
            result = self._run(scratch)
        except Withdrawn:
            return
        except BaseException as error:  # noqa: BLE001  (whoever awaits the job gets it)
            self._tell(self._fail, error)
        else:
            assert self.began_s is not None, "a job used the device without a turn"
            self.seconds = self._clock() - self.began_s
            self._tell(self._succeed, result)

    def _tell(self, what: Callable[[Any], None], value: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
            self._loop.call_soon_threadsafe(what, value)

    def _succeed(self, result: T) -> None:
        self._over = True
        if not self.future.done():
            self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        self._over = True
        if not self.future.done():
            self.future.set_exception(error)


class Workers:
    """Up to `count` jobs at the device at once. Threads are started when first needed. `helpers` more of them prepare
    and compute while others use it: where there are any, a job calls `take_turn` itself, before it touches the device
    or the caller's memory, and has done nothing that cannot be cancelled until then."""

    def __init__(self, count: int, name: str, clock: Callable[[], float] = time.monotonic, *, helpers: int = 0) -> None:
        self._count = count + helpers
        self._takes_turn = not helpers
        self._turns = threading.Semaphore(count)
        self._name = name
        self._clock = clock
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._jobs: set[Job[Any]] = set()

    def submit(self, run: Callable[[Scratch], T]) -> Job[T]:
        """Have it run in a thread, after those submitted before. From the loop's thread."""
        job = Job(run, asyncio.get_running_loop(), self._clock)
        self._jobs.add(job)
        job.future.add_done_callback(lambda _: self._jobs.discard(job))
        if len(self._threads) < min(self._count, len(self._jobs)):
            thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._queue.put(job)
        return job

    def oldest_s(self) -> float:
        """For how long the job that has run longest has been running; 0.0 = none runs."""
        began = min((job.began_s for job in self._jobs if job.began_s is not None), default=None)
        return 0.0 if began is None else self._clock() - began

    async def drain(self) -> None:
        """Until nothing is to do and nothing being done."""
        while self._jobs:
            await asyncio.wait([job.future for job in self._jobs])

    def stop(self) -> None:
        """End the threads once they have done what was submitted. Does not wait."""
        for _ in self._threads:
            self._queue.put(None)

    def _serve(self) -> None:
        scratch = Scratch(self._turns)
        while True:
            scratch.job = self._queue.get()
            if scratch.job is None:
                return
            with contextlib.suppress(Withdrawn):
                if self._takes_turn:
                    scratch.take_turn()
                scratch.job.work(scratch)
            scratch.end_turn()
            scratch.job = None  # it holds the caller's memory
