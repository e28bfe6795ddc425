"""Device: one path's threads, breakers, write budget and counters. Which bytes go where is Log's to say.

Owned by the event loop. Reads and writes have threads and breakers of their own: a device that is full or read-only is
still read, and a request to read never queues behind what is being written.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ....proto import PAGE_BYTES
from ....proto.encrypted import FindKey
from ....proto.record import ENCRYPTED_VERSION, VERSION, DeviceState
from ..codec import RAW, Codec
from .breaker import Breaker
from .budget import Budget
from .cipher import Cipher
from .files import Files
from .transfer import Opener, Outcome
from .types import NvmePath
from .upkeep import write_state
from .workers import Job, Scratch, Workers

log = logging.getLogger(__name__)
T = TypeVar("T")

# Errors that do not pass by themselves within a few requests.
_SURE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ENOTDIR, errno.EACCES, errno.EPERM}
# Errors of this process, not of the record that was asked for.
_OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}


@dataclass(frozen=True, slots=True)
class Options:
    """What all devices of a tier share; NvmeTier.open says what each means."""

    files: Files
    codec: Codec = RAW
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    entropy: Callable[[int], bytes] = os.urandom
    segment_bytes: int = 256 << 20
    request_bytes: int = 8 << 20
    threads: int = 4
    max_pending_bytes: int = 256 << 20
    slow_s: float = 1.0
    cipher: Cipher | None = None

    @property
    def version(self) -> int:
        """Of new segments."""
        return VERSION if self.cipher is None else ENCRYPTED_VERSION

    @property
    def find(self) -> FindKey | None:
        """The keys of records; None: there are none, and no record may need one."""
        return None if self.cipher is None else self.cipher.find


@dataclass(slots=True)
class Totals:
    """Since the start; they only grow."""

    written_bytes: int = 0
    accepted_bytes: int = 0
    read_bytes: int = 0
    errors: int = 0
    corrupt_blocks: int = 0
    encrypted_blocks: int = 0
    open_failures: int = 0
    key_missing_blocks: int = 0
    clear_dropped_blocks: int = 0


@dataclass(slots=True)
class Pace:
    """Bytes per second of single requests, the last ones counting most."""

    _bytes: float = 0.0
    _seconds: float = 0.0

    @property
    def bytes_s(self) -> float:
        return self._bytes / self._seconds if self._seconds else 0.0

    def learn(self, size: int, seconds: float) -> None:
        self._bytes = 0.9 * self._bytes + size
        self._seconds = 0.9 * self._seconds + seconds


class Device:
    """known: the path's state file."""

    def __init__(self, where: NvmePath, options: Options, known: DeviceState | None) -> None:
        self.where = where
        self.options = options
        self.opener = Opener(options.files)
        self.reads = Breaker("reads", options.clock)
        self.writes = Breaker("writes", options.clock)
        self.readers = Workers(options.threads, "nvme-read", options.clock, helpers=options.threads)
        self.writers = Workers(options.threads, "nvme-write", options.clock)
        self.keeper = Workers(1, "nvme-keep", options.clock)  # one thread, so that small writes keep their order
        self.budget = Budget(where.daily_write_bytes, known, options.wall)
        self.totals = Totals()
        self.read_pace = Pace()
        self.write_pace = Pace()
        self.lost = ""  # why the path cannot be used until the next start

    def state(self) -> str:
        """For people."""
        said = [self.lost, self.reads.state(), self.writes.state()]
        return "; ".join(text for text in said if text) or "ok"

    def read(self, run: Callable[[Scratch], T]) -> Job[T]:
        return self.readers.submit(run)

    def write(self, run: Callable[[Scratch], T]) -> Job[T]:
        return self.writers.submit(run)

    def charge(self, size: int) -> None:
        """Bytes that are about to be written."""
        self.totals.written_bytes += size
        self.budget.charge(size)
        due = self.budget.due()
        if due is not None:
            self._save(due)

    def save_budget(self) -> None:
        """At the end: what was written today, exactly."""
        final = self.budget.final()
        if final is not None:
            self._save(final)

    def has_read(self, outcome: Outcome, seconds: float) -> None:
        """A read has ended."""
        self.totals.read_bytes += outcome.read_bytes
        if outcome.error is not None:
            self.failed(self.reads, outcome.error)
            return
        self.read_pace.learn(outcome.read_bytes, seconds)
        if seconds < self.options.slow_s:
            self.reads.success()

    def has_written(self, size: int, seconds: float) -> None:
        """Records have been written."""
        self.write_pace.learn(size, seconds)
        if seconds < self.options.slow_s:
            self.writes.success()

    def stop(self) -> None:
        """End the threads once they have done what they were given. Does not wait."""
        for workers in (self.readers, self.writers, self.keeper):
            workers.stop()

    def failed(self, breaker: Breaker, error: OSError) -> None:
        self.totals.errors += 1
        if error.errno in _OURS:
            log.warning("%s: %s", self.where.path, error.strerror)
            return
        self._failure(breaker, (error.strerror or str(error)).lower(), sure=error.errno in _SURE)

    def too_late(self, breaker: Breaker, workers: Workers) -> None:
        """Someone has given up waiting: held against the device only if a call of it is really slow."""
        if workers.oldest_s() >= self.options.slow_s:
            self.totals.errors += 1
            self._failure(breaker, "the device is slow to answer", sure=False)

    @staticmethod
    def condemns(outcome: Outcome) -> bool:
        """Whether a record that could not be read is given up, too."""
        return outcome.error is None or outcome.error.errno not in _OURS

    def _failure(self, breaker: Breaker, why: str, *, sure: bool) -> None:
        if breaker.failure(why, sure=sure):
            log.error("%s: %s", self.where.path, breaker.state())

    def _save(self, state: DeviceState) -> None:
        self.totals.written_bytes += PAGE_BYTES
        self.budget.charge(PAGE_BYTES)
        job = self.keeper.submit(lambda _: write_state(self.options.files, self.where.path, state))
        job.future.add_done_callback(self.saved)

    def saved(self, future: "asyncio.Future[None]") -> None:
        """A small write of the keeper has ended."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, OSError):
            self.failed(self.writes, error)
        elif error is not None:
            raise error
