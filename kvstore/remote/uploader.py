"""Uploader: writes blocks from the arena to the store of last resort, behind the engines' backs.

What is committed or read is offered at once. It waits, pinned, in a queue bounded by bytes, and is written root first:
a block goes only under a parent that is there. What is there already is not sent again; that it is still in use is
noted there every REFRESH_S, so that what is hot here does not grow cold there. What is not taken is counted with its
reason and offered again by the next request that reads it. One writer; used on the store's loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...proto import DTYPE_BYTES
from ...radix import Match
from ..elsewhere import REMOTE
from ..placement.admission import BlockFacts
from ..placement.cost import IoCost, TierCost
from ..residents import ABSENT, Residents
from ..retention import retention_of
from ..stats import Counters, TierStats
from ..tiers import Failed, Put, Record, Rejected, Stored
from .remote import Remote

log = logging.getLogger(__name__)

BATCH_BYTES = 16 << 20  # of one put; its blocks are written side by side
PUT_DEADLINE_S = 30.0
REFRESH_S = 1800  # that a block is taken to be there, since it was last seen or written
QUEUED = 2**32 - 1  # column `remote`: ABSENT, QUEUED, or the second at which it was last known to be there


@dataclass(slots=True, eq=False)
class _Job:
    """A pinned path; its blocks from `first` on are to be written. lease: the read lease that pins it."""

    space: Residents
    lease: int
    tokens: bytes
    first: int
    size: int


class Uploader:
    """max_bytes: of blocks that may wait."""

    def __init__(
        self,
        remote: Remote,
        counters: Counters,
        io: IoCost,
        lease_ids: Iterator[int],
        clock: Callable[[], float],
        *,
        max_bytes: int,
    ) -> None:
        self.remote = remote
        self._tier = remote.tier
        self._admission = remote.admission
        self._dropped = remote.tier.counts.dropped_uploads
        self._counters = counters
        self._io = io
        self._lease_ids = lease_ids
        self._clock = clock
        self._began_s = clock()
        self._max_bytes = max_bytes
        self._queue: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._jobs: dict[int, _Job] = {}  # all that are not finished, by lease
        self._writer: asyncio.Task[None] | None = None
        self._limbo: set[asyncio.Task[None]] = set()
        self._epoch = 0  # moves at each clear
        self._closed = False

    @property
    def pending_blocks(self) -> int:
        return sum(job.size // job.space.size_class.slot_bytes for job in self._jobs.values())

    @property
    def pending_bytes(self) -> int:
        return self._waiting_bytes

    def leases(self, space: Residents) -> list[int]:
        """Read leases held on a namespace."""
        return [lease for lease, job in self._jobs.items() if job.space is space]

    def offer(self, space: Residents, tokens: bytes, match: Match) -> None:
        """These blocks were just committed or read: those not known to be there may be written, if admitted."""
        if self._closed or not len(match):
            return
        marks = space.index.col("remote")[match.blocks]
        stale = np.flatnonzero(marks < self._now() - REFRESH_S)
        if not len(stale):
            return
        first, wanted = int(stale[0]), int(stale[-1]) + 1
        if not self._tier.takes:
            self._dropped["breaker"] += wanted - first
            return
        end = self._admitted(space, match, first, wanted)
        room = max(self._max_bytes - self._waiting_bytes, 0) // space.size_class.slot_bytes
        if end - first > room:
            self._dropped["backlog"] += end - first - room
            end = first + room
        if end > first:
            self._push(space, tokens, match, first, end)

    def saw(self, space: Residents, tokens: bytes, first: int) -> None:
        """Blocks `first`.. of these tokens came from there just now."""
        space.index.col("remote")[space.index.match(tokens).blocks[first:]] = self._now()

    async def flush(self) -> None:
        """Wait until everything that was offered is written or refused."""
        while self._running or self._limbo:
            assert self._writer is not None
            await asyncio.wait({self._writer, *self._limbo})

    async def clear(self, fingerprint: bytes | None) -> None:
        """Remove a namespace there, too. Not all of them (None): others use the store as well."""
        self._epoch += 1
        if fingerprint is not None:
            await self._tier.clear(fingerprint)

    async def stop(self) -> None:
        """Give up what waits, and close the tier. What is being written ends by itself."""
        self._closed = True
        while self._queue:
            job = self._queue.popleft()
            self._dropped["closed"] += self._blocks(job)
            self._finish(job)
        await self._tier.close()

    def stats(self) -> TierStats:
        """The remote tier's line."""
        usage, cost = self._tier.usage(), self._io.tiers("read").get(REMOTE, TierCost())
        return TierStats(
            name=REMOTE,
            capacity_bytes=usage.capacity_bytes,
            used_bytes=usage.used_bytes,
            leased_bytes=0,
            reserved_bytes=self._waiting_bytes,
            blocks=usage.blocks,
            latency_s=cost.latency_s,
            bytes_per_s=cost.bytes_per_s,
        )

    @property
    def _running(self) -> bool:
        return self._writer is not None and not self._writer.done()

    def _now(self) -> int:
        """Seconds, such that ABSENT is older than anything that is there."""
        return int(self._clock() - self._began_s) + REFRESH_S + 1

    @staticmethod
    def _blocks(job: _Job) -> int:
        return job.size // job.space.size_class.slot_bytes

    def _admitted(self, space: Residents, match: Match, first: int, wanted: int) -> int:
        """The end of the leading run of blocks from `first` on that are worth writing."""
        blocks = match.blocks[first:wanted]
        usage, size = self._tier.usage(), space.namespace.layout.block_bytes
        fill = usage.used_bytes / usage.capacity_bytes if usage.capacity_bytes else 0.0
        rows = zip(space.index.col("hits")[blocks].tolist(), retention_of(space.index, blocks), strict=True)
        for depth, (hits, retention) in enumerate(rows, first):
            if not self._admission.admit(BlockFacts(hits, depth, size, fill, retention=retention)):
                self._dropped["not_admitted"] += wanted - depth
                return depth
        return wanted

    def _push(self, space: Residents, tokens: bytes, match: Match, first: int, end: int) -> None:
        lease = next(self._lease_ids)
        path = Match(match.blocks[:end], end * space.block_tokens)
        space.read(lease, path, first)
        marks = space.index.col("remote")
        queued = path.blocks[first:]
        marks[queued[marks[queued] < self._now() - REFRESH_S]] = QUEUED
        size = (end - first) * space.size_class.slot_bytes
        job = _Job(space, lease, tokens[: end * space.block_token_bytes], first, size)
        self._jobs[lease] = job
        self._queue.append(job)
        self._waiting_bytes += size
        if not self._running:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        while self._queue:
            job = self._queue.popleft()
            busy: list[asyncio.Event] = []
            try:
                busy = await self._write(job)
            except Exception:
                log.exception("the remote tier failed in a way it should not")
            if busy:
                task = asyncio.get_running_loop().create_task(self._finish_later(job, busy))
                self._limbo.add(task)
                task.add_done_callback(self._limbo.discard)
            else:
                self._finish(job)

    async def _write(self, job: _Job) -> list[asyncio.Event]:
        """Batch after batch, until one falls short; what may still read from the job's slots."""
        space, path = job.space, job.space.reads[job.lease].path
        above = int(space.index.col("remote")[path[job.first - 1]]) if job.first else QUEUED
        if above == ABSENT:  # what should have come before it did not
            self._dropped["no_parent"] += self._blocks(job)
            return []
        step = max(1, BATCH_BYTES // space.size_class.slot_bytes)
        epoch = self._epoch
        for start in range(job.first, len(path), step):
            if not space.index.col("live")[path].all() or epoch != self._epoch:
                return []  # found corrupt, or cleared, while it waited
            records = self._records(job, start, min(start + step, len(path)))
            answers = await self._put(records)
            if epoch != self._epoch:
                await self._tier.drop([record.key for record in records])
            elif all(isinstance(answer, Stored) for answer in answers):
                space.index.col("remote")[path[start : start + len(records)]] = self._now()
                continue
            else:
                await self._fell_short(job, start, records, answers)
            return [answer.until for answer in answers if isinstance(answer, Failed) and answer.until is not None]
        return []

    async def _put(self, records: Sequence[Record]) -> list[Put]:
        counts = self._tier.counts
        with self._io.measure(REMOTE, "write", self._clock) as measured:
            fresh = counts.uploaded_blocks
            answers = await self._tier.put(records, deadline_s=PUT_DEADLINE_S)
            fresh = counts.uploaded_blocks - fresh
            measured.size_bytes = fresh * records[0].block_bytes if fresh == len(records) else 0
        self._counters.written_bytes[REMOTE] += fresh * records[0].block_bytes
        self._counters.demoted_blocks[REMOTE] += fresh
        return answers

    async def _fell_short(self, job: _Job, start: int, records: Sequence[Record], answers: Sequence[Put]) -> None:
        """Keep the leading blocks that are there, count why the others are not, leave none without its parent."""
        stored = next(at for at, answer in enumerate(answers) if not isinstance(answer, Stored))
        path = job.space.reads[job.lease].path
        job.space.index.col("remote")[path[start : start + stored]] = self._now()
        for answer in answers[stored:]:
            self._dropped[answer.reason if isinstance(answer, Rejected | Failed) else "no_parent"] += 1
        self._dropped["no_parent"] += len(path) - start - len(records)
        orphans = zip(records[stored:], answers[stored:], strict=True)
        await self._tier.drop([record.key for record, answer in orphans if isinstance(answer, Stored)])

    @staticmethod
    def _records(job: _Job, start: int, end: int) -> list[Record]:
        """Of blocks start .. end-1 of the job's path."""
        space = job.space
        index, layout, size = space.index, space.namespace.layout, space.block_token_bytes
        path = space.reads[job.lease].path
        blocks = path[start:end]
        index.key(int(blocks[-1]))  # with those above
        keys = index.known_keys(blocks)
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

    def _finish(self, job: _Job) -> None:
        """Unpin; what did not get there may be offered again."""
        space = job.space
        held = space.reads[job.lease]
        marks = space.index.col("remote")
        mine = held.path[job.first :]
        mine = mine[space.index.col("live")[mine] & (marks[mine] == QUEUED)]
        marks[mine] = ABSENT
        self._waiting_bytes -= job.size
        del self._jobs[job.lease]
        space.end_read(held)

    async def _finish_later(self, job: _Job, busy: Sequence[asyncio.Event]) -> None:
        for event in busy:
            await event.wait()
        self._finish(job)
