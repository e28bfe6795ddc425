"""Worker side: copies between pool pages and arena slots in background threads, with checksums. No asyncio.

A job (one load or one save) is cut into chunks; a few threads take chunks, loads before saves, several threads on
one job. A job ends when all its chunks have been copied or skipped, and then calls back exactly once, from a copy
thread: from that moment no thread touches its pages or slots. Deadlines and cancels are seen between chunks.

Never a wrong byte: a loaded block counts only if its bytes have the checksum that the store recorded when they were
written, and its slot still has the generation that the lease named, looked at after the copy.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from ..kvstore.arena import ArenaView
from ..kvstore.errors import ArenaError
from ..kvstore.types import SlotRef
from ..proto import PAGE_BYTES
from .copiers import Copier, Rows

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transfer:
    """slots[i] <-> pages[i], in order. deadline: on the worker's clock, in seconds; later chunks are skipped."""

    slots: Sequence[SlotRef]
    pages: Sequence[int]
    arena: ArenaView
    fence: Any
    deadline: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    """blocks_ok leading blocks are verified; corrupt: positions whose checksum failed; reason: why not all ("")."""

    blocks_ok: int
    corrupt: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SaveResult:
    """checksums: xxh3-64 of every block, or () and the reason."""

    checksums: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions start..stop-1 of a transfer, consecutive both in slots and in pages."""

    start: int
    stop: int


def cut(slots: Sequence[SlotRef], pages: Sequence[int], slot_step: int, max_blocks: int) -> list[Chunk]:
    """Runs of at most max_blocks blocks; slot_step is the distance of neighbouring slots in slot numbers. O(n)."""
    chunks: list[Chunk] = []
    start = 0
    for i in range(1, len(slots) + 1):
        if (
            i == len(slots)
            or i - start == max_blocks
            or slots[i].slot != slots[i - 1].slot + slot_step
            or pages[i] != pages[i - 1] + 1
        ):
            chunks.append(Chunk(start, i))
            start = i
    return chunks


class Job(ABC):
    """One transfer under way. claim() and settle() are called under the threads' lock, run() outside of it."""

    urgent = False

    def __init__(self, transfer: Transfer, copier: Copier, clock: Callable[[], float]) -> None:
        self.transfer = transfer
        self.copier = copier
        self._clock = clock
        view = transfer.arena
        step, most = view.slot_bytes // PAGE_BYTES, max(1, copier.chunk_bytes // view.block_bytes)
        chunks = cut(transfer.slots, transfer.pages, step, most)
        self._chunks: Iterator[Chunk] = iter(chunks)
        self._open = len(chunks)
        self._cancelled = False
        self._lock = threading.Lock()
        self._good = len(transfer.slots)  # positions below have no trouble so far
        self._reason = ""

    def cancel(self) -> None:
        """Chunks not yet begun are skipped; the job still ends by itself."""
        self._cancelled = True

    def claim(self) -> Chunk | None:
        return next(self._chunks, None)

    def settle(self) -> bool:
        """Count one chunk as ended; True if it was the last."""
        self._open -= 1
        return self._open == 0

    def run(self, chunk: Chunk) -> None:
        """Copy one chunk, or note why not. Whatever goes wrong makes the result shorter, not the thread end."""
        try:
            if self._cancelled:
                self.trouble(chunk.start, "cancelled")
            elif self._clock() >= self.transfer.deadline:
                self.trouble(chunk.start, "deadline")
            elif chunk.start < self._good:
                self.copy(chunk)
        except ArenaError:
            self.trouble(chunk.start, "disconnected")  # the client let go of the mapping: the store is gone
        except Exception:
            logger.warning("copy of %d blocks failed", chunk.stop - chunk.start, exc_info=True)
            self.trouble(chunk.start, "error")

    @abstractmethod
    def copy(self, chunk: Chunk) -> None:
        """Copy and check one chunk; note what is wrong with trouble()."""

    @abstractmethod
    def finish(self) -> None:
        """Report the result; called once, after the last chunk."""

    def trouble(self, position: int, reason: str) -> None:
        with self._lock:
            if position < self._good:
                self._good, self._reason = position, reason

    def stale(self, chunk: Chunk) -> int | None:
        """The first position of the chunk whose slot is no longer the one that the lease named."""
        slots, view = self.transfer.slots, self.transfer.arena
        for i in range(chunk.start, chunk.stop):
            if view.generation(slots[i].slot) != slots[i].generation:
                return i
        return None

    def slot_rows(self, chunk: Chunk) -> Rows:
        view, blocks = self.transfer.arena, chunk.stop - chunk.start
        run = view.run(self.transfer.slots[chunk.start].slot, blocks)
        return run.reshape(blocks, view.slot_bytes)[:, : view.block_bytes]


class LoadJob(Job):
    """Slots into pages."""

    urgent = True

    def __init__(
        self, transfer: Transfer, copier: Copier, clock: Callable[[], float], done: Callable[[LoadResult], None]
    ) -> None:
        super().__init__(transfer, copier, clock)
        self._done = done
        self._corrupt: list[int] = []

    def copy(self, chunk: Chunk) -> None:
        transfer = self.transfer
        rows = self.copier.to_pages(self.slot_rows(chunk), transfer.pages[chunk.start], transfer.fence)
        expected = transfer.slots[chunk.start : chunk.stop]
        bad = [
            chunk.start + i
            for i, (row, ref) in enumerate(zip(rows, expected, strict=True))
            if xxhash.xxh3_64_intdigest(row) != ref.checksum
        ]
        stale = self.stale(chunk)
        if stale is not None:
            # Another block may live there by now: a checksum that fails says nothing about ours.
            self.trouble(stale, "stale")
            bad = [i for i in bad if i < stale]
        if bad:
            self.trouble(bad[0], "corrupt")
            with self._lock:
                self._corrupt += bad

    def finish(self) -> None:
        done, self._done = self._done, _nobody
        done(LoadResult(self._good, tuple(sorted(self._corrupt)), self._reason))


class SaveJob(Job):
    """Pages into slots: all or nothing, since a commit makes all blocks of a lease visible."""

    def __init__(
        self, transfer: Transfer, copier: Copier, clock: Callable[[], float], done: Callable[[SaveResult], None]
    ) -> None:
        super().__init__(transfer, copier, clock)
        self._done = done
        self._checksums = [0] * len(transfer.slots)

    def copy(self, chunk: Chunk) -> None:
        # Before the copy: a slot that a lost session gave up may be somebody else's by now, and must not be written.
        stale = self.stale(chunk)
        if stale is not None:
            self.trouble(stale, "stale")
            return
        transfer = self.transfer
        rows = self.copier.to_slots(transfer.pages[chunk.start], self.slot_rows(chunk), transfer.fence)
        for i, row in enumerate(rows, chunk.start):
            self._checksums[i] = xxhash.xxh3_64_intdigest(row)

    def finish(self) -> None:
        done, self._done = self._done, _nobody
        done(SaveResult((), self._reason) if self._reason else SaveResult(tuple(self._checksums), ""))


def _nobody(result: object) -> None:
    """In place of whom a job told, once it did: they often know the job. The two would keep each other, and a dead
    store's memory, until Python looks for cycles; and until then the store's next start may have no room."""


class CopyThreads:
    """A fixed number of daemon threads that work off jobs, urgent ones first, in order of arrival."""

    def __init__(self, count: int) -> None:
        self._wake = threading.Condition()
        self._urgent: deque[Job] = deque()
        self._patient: deque[Job] = deque()
        self._running: set[Job] = set()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"kvterrace-copy-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, job: Job) -> bool:
        """Queue a job of at least one block; False if closed, and then the job never calls back."""
        with self._wake:
            if self._closed:
                return False
            (self._urgent if job.urgent else self._patient).append(job)
            self._running.add(job)
            self._wake.notify_all()
        return True

    def close(self) -> None:
        """Cancel what is under way, let every job call back, join the threads: at most one chunk's time each."""
        with self._wake:
            self._closed = True
            for job in self._running:
                job.cancel()
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        # A frame of its own: between chunks no idle thread may keep a job, and so a dead store's memory, alive.
        work = self._next()
        if work is None:
            return False
        job, chunk = work
        job.run(chunk)
        with self._wake:
            last = job.settle()
            if last:
                self._running.discard(job)
        if last:
            try:
                job.finish()
            except Exception:
                logger.exception("the end of a copy could not be reported")
        return True

    def _next(self) -> tuple[Job, Chunk] | None:
        with self._wake:
            while True:
                for queue in (self._urgent, self._patient):
                    while queue:
                        chunk = queue[0].claim()
                        if chunk is not None:
                            return queue[0], chunk
                        queue.popleft()
                if self._closed:
                    return None
                self._wake.wait()


class Worker:
    """The copier of one pool together with the threads that run it; the threads may be shared with other pools."""

    def __init__(self, copier: Copier, threads: CopyThreads, clock: Callable[[], float]) -> None:
        self.copier = copier
        self._threads = threads
        self._clock = clock

    def load(self, transfer: Transfer, done: Callable[[LoadResult], None]) -> Job | None:
        """Begin; `done` is called once from a copy thread. None, and no call, once the threads are closed."""
        job = LoadJob(transfer, self.copier, self._clock, done)
        return job if self._threads.put(job) else None

    def save(self, transfer: Transfer, done: Callable[[SaveResult], None]) -> Job | None:
        """As load(), the other way."""
        job = SaveJob(transfer, self.copier, self._clock, done)
        return job if self._threads.put(job) else None

    def with_copier(self, copier: Copier) -> Worker:
        """The same threads at work on another pool."""
        return Worker(copier, self._threads, self._clock)

    def close(self) -> None:
        self._threads.close()
        self.copier.detach()
