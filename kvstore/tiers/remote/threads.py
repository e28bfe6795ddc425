"""OnThreads: makes Objects of a library whose calls block.

The threads are daemons and their number is bounded: one that hangs in a dead file system keeps its own call's memory,
nothing else, and neither others nor the end of the process wait for it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import xxhash

from ..base import Usage
from ..nvme.workers import Workers
from .objects import Found, Name, Trouble

T = TypeVar("T")

READERS, WRITERS, ASKERS = 16, 8, 16  # threads; of different kinds, so that none starves another


class Blocking(Protocol):
    """The verbs of Objects, called from threads. Trouble, too."""

    text: str

    def read(self, name: Name, head: memoryview, payload: memoryview) -> int | None:
        """Size of the whole object, after filling both as far as it reaches."""
        ...

    def write(self, name: Name, head: bytes, payload: memoryview, *, replace: bool) -> bool: ...

    def exists(self, name: Name) -> bool: ...

    def remove(self, name: Name) -> bool: ...

    def clear(self, fingerprint: bytes) -> int: ...

    def count(self) -> None: ...

    def usage(self) -> Usage: ...

    @property
    def evicted(self) -> int: ...


class OnThreads:
    """See the module."""

    def __init__(self, blocking: Blocking, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._blocking = blocking
        self._readers = Workers(READERS, "kvt-remote-read", clock)
        self._writers = Workers(WRITERS, "kvt-remote-write", clock)
        self._askers = Workers(ASKERS, "kvt-remote-ask", clock)
        self._keeper = Workers(1, "kvt-remote-keep", clock)
        self.width = ASKERS
        self.text = blocking.text

    async def read(self, name: Name, head: memoryview, payload: memoryview, *, by: float) -> Found | None:
        def work() -> Found | None:
            size = self._blocking.read(name, head, payload)
            return None if size is None else Found(size, xxhash.xxh3_64_intdigest(payload))

        return await self._do(self._readers, work, by)

    async def write(
        self, name: Name, head: bytes, payload: memoryview, checksum: int, *, replace: bool, by: float
    ) -> bool:
        def work() -> bool:
            if xxhash.xxh3_64_intdigest(payload) != checksum:
                raise Trouble("corrupt", "payload and checksum do not fit")
            return self._blocking.write(name, head, payload, replace=replace)

        return await self._do(self._writers, work, by)

    async def exists(self, names: Sequence[Name], *, by: float) -> list[bool]:
        asked = [self._do(self._askers, lambda name=name: self._blocking.exists(name), by) for name in names]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer is True for answer in answers]

    async def remove(self, name: Name, *, by: float) -> bool:
        return await self._do(self._writers, lambda: self._blocking.remove(name), by)

    async def clear(self, fingerprint: bytes, *, by: float) -> int:
        return await self._do(self._keeper, lambda: self._blocking.clear(fingerprint), by)

    async def count(self, *, by: float) -> None:
        await self._do(self._keeper, self._blocking.count, by)

    def usage(self) -> Usage:
        return self._blocking.usage()

    @property
    def evicted(self) -> int:
        return self._blocking.evicted

    async def close(self) -> None:
        for workers in (self._readers, self._writers, self._askers, self._keeper):
            workers.stop()

    @staticmethod
    async def _do(workers: Workers, work: Callable[[], T], by: float) -> T:
        """Its result. A thread that is late has not begun and never will, or goes on behind Trouble's `until`."""
        left = by - asyncio.get_running_loop().time()
        if left <= 0:
            raise Trouble("deadline", "no time was left")
        job = workers.submit(lambda _: work())
        job.future.add_done_callback(_heard)
        try:
            await asyncio.wait({job.future}, timeout=left)
        except asyncio.CancelledError:
            job.cancel()
            raise
        if job.future.done():
            return job.future.result()
        if job.cancel():
            raise Trouble("deadline", f"all threads were busy for {left:.2f} s")
        until = asyncio.Event()
        job.future.add_done_callback(lambda _: until.set())
        raise Trouble("deadline", f"no answer in {left:.2f} s", until=until)


def _heard(future: "asyncio.Future[Any]") -> None:
    """What a late thread failed with is nobody's business any more."""
    if not future.cancelled():
        future.exception()
