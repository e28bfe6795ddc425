"""WriteBehind: blocks of the arena that wait, pinned, until one writer has put them into a tier.

The queue is bounded by bytes; what does not fit is counted and may be offered again. A block is unpinned when it is
written or refused, or, where a device still reads its slot, when that device lets go. Used on the store's loop.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..proto import DTYPE_BYTES
from ..radix import Match
from .residents import Residents
from .retention import retention_of
from .tiers import Failed, Put, Record, Rejected, Stored


@dataclass(slots=True, eq=False)
class Job:
    """A pinned path; its blocks from `first` on are to be written. lease: the read lease that pins it."""

    space: Residents
    lease: int
    tokens: bytes
    first: int
    size: int

    @property
    def path(self) -> NDArray[np.int32]:
        return self.space.reads[self.lease].path

    @property
    def blocks(self) -> int:
        """To be written."""
        return self.size // self.space.size_class.slot_bytes

    @property
    def live(self) -> bool:
        """Whether all of its path is there; else it was found corrupt, or cleared, while it waited."""
        return bool(self.space.index.col("live")[self.path].all())


class WriteBehind(ABC):
    """dropped: counts what is not written, by reason; max_bytes: of blocks that may wait."""

    def __init__(self, dropped: Counter[str], lease_ids: Iterator[int], max_bytes: int) -> None:
        self._dropped = dropped
        self._lease_ids = lease_ids
        self._max_bytes = max_bytes
        self._queue: deque[Job] = deque()
        self._waiting_bytes = 0
        self._jobs: dict[int, Job] = {}  # all that are not finished, by lease
        self._writer: asyncio.Task[None] | None = None
        self._limbo: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pending_blocks(self) -> int:
        """Offered and not written yet, those included that a device has in hand."""
        return sum(job.blocks for job in self._jobs.values())

    @property
    def pending_bytes(self) -> int:
        return self._waiting_bytes

    def leases(self, space: Residents) -> list[int]:
        """Read leases held on a namespace."""
        return [lease for lease, job in self._jobs.items() if job.space is space]

    async def flush(self) -> None:
        """Wait until everything that was offered is written or refused."""
        while self._running or self._limbo:
            assert self._writer is not None
            await asyncio.wait({self._writer, *self._limbo})

    def close(self) -> None:
        """Take nothing more, give up what waits. What is being written ends by itself."""
        self._closed = True
        while self._queue:
            job = self._queue.popleft()
            self._dropped["closed"] += job.blocks
            self._finish(job)

    @abstractmethod
    async def _write_all(self) -> None:
        """Take jobs from the queue until it is empty; `_end` each."""

    @abstractmethod
    def _mark(self, job: Job) -> None:
        """Note of its blocks that they wait, so that they are not offered again."""

    @abstractmethod
    def _settle(self, job: Job) -> None:
        """Note of its blocks which are written; the others may be offered again."""

    @property
    def _running(self) -> bool:
        return self._writer is not None and not self._writer.done()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._writer = asyncio.get_running_loop().create_task(work)

    def _room_for(self, space: Residents) -> int:
        """Blocks of a namespace that may wait, beside those that do."""
        return max(self._max_bytes - self._waiting_bytes, 0) // space.size_class.slot_bytes

    def _push(self, space: Residents, tokens: bytes, blocks: NDArray[np.int32], first: int) -> None:
        """Queue the blocks of a path from `first` on, which are there; tokens: of the path at least."""
        lease = next(self._lease_ids)
        space.read(lease, Match(blocks, len(blocks) * space.block_tokens), first)
        size = (len(blocks) - first) * space.size_class.slot_bytes
        job = Job(space, lease, tokens[: len(blocks) * space.block_token_bytes], first, size)
        self._mark(job)
        self._jobs[lease] = job
        self._queue.append(job)
        self._waiting_bytes += size

    def _push_fitting(self, space: Residents, tokens: bytes, blocks: NDArray[np.int32], first: int) -> None:
        """As many of them as fit, and see that they get written."""
        count = len(blocks) - first
        fits = min(count, self._room_for(space))
        if count > fits:
            self._dropped["backlog"] += count - fits
        if fits > 0:
            self._push(space, tokens, blocks[: first + fits], first)
            if not self._running:
                self._start(self._write_all())

    def _count_dropped(self, answers: Sequence[Put]) -> None:
        """From the first on that was not stored: what is below it is without its parent."""
        for answer in answers:
            self._dropped[answer.reason if isinstance(answer, Rejected | Failed) else "no_parent"] += 1

    def _end(self, job: Job, answers: Sequence[Put] = ()) -> None:
        """Finish it, once no device reads from its slots any more. answers: to its last put."""
        busy = [answer.until for answer in answers if isinstance(answer, Failed) and answer.until is not None]
        if busy:
            task = asyncio.get_running_loop().create_task(self._finish_later(job, busy))
            self._limbo.add(task)
            task.add_done_callback(self._limbo.discard)
        else:
            self._finish(job)

    async def _finish_later(self, job: Job, busy: Sequence[asyncio.Event]) -> None:
        for event in busy:
            await event.wait()
        self._finish(job)

    def _finish(self, job: Job) -> None:
        """Unpin."""
        self._settle(job)
        self._waiting_bytes -= job.size
        del self._jobs[job.lease]
        job.space.end_read(job.space.reads[job.lease])


def leading_stored(answers: Sequence[Put]) -> int:
    """How many are stored before the first that is not."""
    return next((at for at, answer in enumerate(answers) if not isinstance(answer, Stored)), len(answers))


def records_of(job: Job, start: int, keys: Sequence[bytes]) -> list[Record]:
    """Of the blocks of a job's path from `start` on, which have these keys."""
    space, path = job.space, job.path
    index, layout, size = space.index, space.namespace.layout, space.block_token_bytes
    blocks = path[start : start + len(keys)]
    above = index.key(int(path[start - 1])) if start else space.fingerprint
    rows = zip(
        keys,
        [above, *keys[:-1]],
        index.values(blocks).tolist(),
        space.checksums(blocks),
        retention_of(index, blocks),
        strict=True,
    )
    return [
        Record(
            space.fingerprint,
            key,
            parent,
            job.tokens[ordinal * size : (ordinal + 1) * size],
            layout.block_bytes,
            space.view.block(slot),
            checksum,
            space.namespace.hash_name,
            retention,
            DTYPE_BYTES[layout.dtype],
            ordinal=ordinal,
        )
        for ordinal, (key, parent, slot, checksum, retention) in enumerate(rows, start)
    ]
