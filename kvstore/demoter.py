"""Demoter: writes blocks from the arena to the lower tier, behind the engines' backs.

Inclusive: what is committed or read is offered at once, so that it survives a crash of this process. Exclusive: only
what is about to leave DRAM is. Either way a run of blocks waits, pinned, in a queue bounded by bytes, and is written
root first: a block goes only under a parent that is there. What is not taken is counted with its reason and offered
again by the next request that reads it. One writer; used on the store's loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..proto import DTYPE_BYTES
from ..radix import Match
from .catalog import Catalog
from .depot import Depot
from .placement.admission import Admission, BlockFacts
from .residents import ABSENT, QUEUED, WRITTEN, Residents
from .retention import retention_of
from .room import Room
from .stats import Counters
from .tiers import Failed, Put, Record, Rejected, Stored

log = logging.getLogger(__name__)

BATCH_BYTES = 64 << 20  # of one put: enough for several large writes side by side
PUT_DEADLINE_S = 30.0
FREE_SHARE = 16  # exclusive: a sixteenth of the slots is kept free by writing ahead of eviction


@dataclass(slots=True, eq=False)
class _Job:
    """A pinned path; its blocks from `first` on are to be written. lease: the read lease that pins it."""

    space: Residents
    lease: int
    tokens: bytes
    first: int
    size: int


@dataclass(slots=True, eq=False)
class _Batch:
    """The part of a job that goes into one put: blocks start .. start+len(keys)-1 of its path."""

    job: _Job
    catalog: Catalog
    start: int
    keys: list[bytes]
    records: list[Record]
    pin: int  # the catalog's block right above, leased; -1 = none


class Demoter:
    """max_bytes: of blocks that may wait. idle while the depot has no tier."""

    def __init__(
        self,
        depot: Depot,
        room: Room,
        admission: Admission,
        counters: Counters,
        lease_ids: Iterator[int],
        *,
        max_bytes: int,
        exclusive: bool = False,
    ) -> None:
        self._depot = depot
        self._room = room
        self._admission = admission
        self._counters = counters
        self._lease_ids = lease_ids
        self._max_bytes = max_bytes
        self._exclusive = exclusive
        self._queue: deque[_Job] = deque()
        self._waiting_bytes = 0
        self._jobs: dict[int, _Job] = {}  # all that are not finished, by lease
        self._writer: asyncio.Task[None] | None = None
        self._limbo: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pending_blocks(self) -> int:
        """Offered and not written yet, those included that a device has in hand."""
        return sum(job.size // job.space.size_class.slot_bytes for job in self._jobs.values())

    @property
    def pending_bytes(self) -> int:
        return self._waiting_bytes

    def leases(self, space: Residents) -> list[int]:
        """Read leases held on a namespace."""
        return [lease for lease, job in self._jobs.items() if job.space is space]

    def offer(self, space: Residents, tokens: bytes, match: Match) -> None:
        """These blocks were just committed or read: those without a copy below may be written, if they are admitted."""
        if self._depot.present and not self._exclusive and len(match):
            self._enqueue(space, tokens, match)

    def cool(self, space: Residents) -> None:
        """Exclusive: when free slots of this size run short, write what will leave next, and let it leave."""
        if self._depot.present and self._exclusive and not self._closed and not self._running:
            self._start(self._cool(space))

    async def write_out(self, space: Residents) -> None:
        """Write what of a namespace has no copy below yet, the most recently used prompts first: for a stop."""
        if not self._depot.present:
            return
        index = space.index
        tips = np.array([block for block in index.iterate() if index.is_tip(block)], dtype=np.int32)
        for tip in tips[np.argsort(index.col("last_use")[tips])[::-1]].tolist():
            if index.col("live")[tip]:
                path = index.path(tip)
                self._enqueue(space, index.tokens_to(tip), Match(path, len(path) * space.block_tokens))
            if self._waiting_bytes > self._max_bytes // 2:
                await self.flush()

    async def flush(self) -> None:
        """Wait until everything that was offered is written or refused."""
        while self._running or self._limbo:
            assert self._writer is not None
            await asyncio.wait({self._writer, *self._limbo})

    def close(self) -> None:
        """Take nothing more, give up what waits. What is being written ends by itself."""
        self._closed = True
        while self._queue:
            self._drop(self._queue.popleft(), "closed")

    @property
    def _running(self) -> bool:
        return self._writer is not None and not self._writer.done()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._writer = asyncio.get_running_loop().create_task(work)

    def _enqueue(self, space: Residents, tokens: bytes, match: Match) -> None:
        below = space.index.col("below")
        absent = np.flatnonzero(below[match.blocks] == ABSENT)
        if not len(absent) or self._closed:
            return
        first = int(absent[0])
        end = self._admitted(space, match, first)
        if end == first:
            return
        room = max(self._max_bytes - self._waiting_bytes, 0) // space.size_class.slot_bytes
        if end - first > room:
            self._counters.dropped_demotions["backlog"] += end - first - room
            end = first + room
            if not room:
                return
        self._push(space, tokens, Match(match.blocks[:end], end * space.block_tokens), first)
        if not self._running:
            self._start(self._write_all())

    def _push(self, space: Residents, tokens: bytes, match: Match, first: int) -> None:
        lease = next(self._lease_ids)
        space.read(lease, match, first)
        space.index.col("below")[match.blocks[first:]] = QUEUED
        size = (len(match) - first) * space.size_class.slot_bytes
        job = _Job(space, lease, tokens[: len(match) * space.block_token_bytes], first, size)
        self._jobs[lease] = job
        self._queue.append(job)
        self._waiting_bytes += size

    def _admitted(self, space: Residents, match: Match, first: int) -> int:
        """The end of the leading run of blocks from `first` on that are worth writing."""
        why = self._depot.tier.refuses(space.fingerprint)
        if why:  # before room is made for what will not come
            self._counters.dropped_demotions[why] += len(match) - first
            return first
        hits = space.index.col("hits")[match.blocks[first:]].tolist()
        said = retention_of(space.index, match.blocks[first:])
        fill, size = self._depot.fill, space.namespace.layout.block_bytes
        load_s = space.cost.load_s(self._depot.name, size)
        for place, (count, retention) in enumerate(zip(hits, said, strict=True)):
            depth = first + place
            compute_s = space.cost.compute_s(depth * space.block_tokens, space.block_tokens)
            if not self._admission.admit(BlockFacts(count, depth, size, fill, compute_s, load_s, retention)):
                self._counters.dropped_demotions["not_admitted"] += len(hits) - place
                return depth
        return len(match)

    async def _write_all(self) -> None:
        while self._queue:
            batches: list[_Batch] = []
            size = 0
            planned: set[bytes] = set()
            while self._queue and size < BATCH_BYTES:
                job = self._queue.popleft()
                size += job.size
                batch = self._prepare(job, planned)
                if batch is None:
                    self._finish(job)
                else:
                    batches.append(batch)
            if batches:
                await self._write(batches)

    def _prepare(self, job: _Job, planned: set[bytes]) -> _Batch | None:
        """What of a job is still to be written, with what it hangs under pinned; None = nothing."""
        space, held = job.space, job.space.reads[job.lease]
        index, path = space.index, held.path
        if not index.col("live")[path].all():
            return None  # found corrupt, or cleared, while it waited
        catalog = self._depot.open(space)
        have = catalog.index.match(job.tokens)
        last = int(path[-1])
        index.key(last)
        keys = [index.key(block) for block in path[len(have) :].tolist()]
        start = len(have)
        while start < len(path) and keys[start - len(have)] in planned:
            start += 1
        keys = keys[start - len(have) :]
        if not keys:
            return None
        planned.update(keys)
        above = index.key(int(path[start - 1])) if start else space.fingerprint
        records = self._records(space, job.tokens, path, start, keys, above)
        if len(have):
            catalog.index.lease(have.last)
        return _Batch(job, catalog, start, keys, records, have.last)

    @staticmethod
    def _records(
        space: Residents, tokens: bytes, path: NDArray[np.int32], start: int, keys: list[bytes], above: bytes
    ) -> list[Record]:
        layout, size = space.namespace.layout, space.block_token_bytes
        blocks = path[start:]
        rows = zip(
            keys,
            [above, *keys[:-1]],
            space.index.values(blocks).tolist(),
            space.checksums(blocks),
            retention_of(space.index, blocks),
            strict=True,
        )
        return [
            Record(
                space.fingerprint,
                key,
                parent,
                tokens[ordinal * size : (ordinal + 1) * size],
                layout.block_bytes,
                space.view.block(slot),
                checksum,
                space.namespace.hash_name,
                retention,
                DTYPE_BYTES[layout.dtype],
            )
            for ordinal, (key, parent, slot, checksum, retention) in enumerate(rows, start)
        ]

    async def _write(self, batches: Sequence[_Batch]) -> None:
        """One put for all of these, then each in turn: what was stored is in the catalog, or nowhere."""
        epoch = self._depot.epoch
        records = [record for batch in batches for record in batch.records]
        try:
            answers = await self._depot.put(records, deadline_s=PUT_DEADLINE_S)
        except Exception:
            log.exception("the %s tier failed in a way it should not", self._depot.name)
            answers: list[Put] = [Failed("error")] * len(records)
        at = 0
        for batch in batches:
            part = answers[at : at + len(batch.records)]
            at += len(batch.records)
            stored = self._enter(batch, part) if epoch == self._depot.epoch else 0
            orphans = [
                key
                for key, answer in zip(batch.keys[stored:], part[stored:], strict=True)
                if isinstance(answer, Stored)
            ]
            if orphans:
                await self._depot.tier.drop(orphans)
            busy = [each.until for each in part if isinstance(each, Failed) and each.until is not None]
            if batch.pin >= 0:
                batch.catalog.index.release(batch.pin)
            if busy:
                task = asyncio.get_running_loop().create_task(self._finish_later(batch.job, busy))
                self._limbo.add(task)
                task.add_done_callback(self._limbo.discard)
            else:
                self._finish(batch.job)

    def _enter(self, batch: _Batch, answers: Sequence[Put]) -> int:
        """Put the leading stored blocks into the catalog; how many. Counts the others."""
        space, name = batch.job.space, self._depot.name
        stored = next((at for at, answer in enumerate(answers) if not isinstance(answer, Stored)), len(answers))
        known = len(batch.catalog.index.match(batch.job.tokens, limit=batch.start))
        if known < batch.start:  # the batch before fell short, or what was above was found corrupt
            self._counters.dropped_demotions["no_parent"] += len(answers)
            return 0
        if stored:
            path = space.reads[batch.job.lease].path[batch.start : batch.start + stored]
            fresh = batch.catalog.add(batch.job.tokens, batch.start, batch.keys[:stored])
            said = space.index.retention(path[len(path) - len(fresh) :])
            batch.catalog.index.retain(fresh, priority=said.priority, ttl_s=said.ttl_s, pinned=said.pinned)
            self._counters.demoted_blocks[name] += stored
        for answer in answers[stored:]:
            why = answer.reason if isinstance(answer, Rejected | Failed) else "no_parent"
            self._counters.dropped_demotions[why] += 1
        return stored

    def _finish(self, job: _Job) -> None:
        """Unpin; what has a copy now is marked, what has none may be offered again."""
        space = job.space
        held = space.reads[job.lease]
        catalog = self._depot.of(space.fingerprint)
        have = len(catalog.index.match(job.tokens)) if catalog is not None else 0
        live = space.index.col("live")[held.path]
        marks = np.where(np.arange(len(held.path)) < have, WRITTEN, ABSENT).astype(np.uint8)
        space.index.col("below")[held.path[live]] = marks[live]
        self._waiting_bytes -= job.size
        del self._jobs[job.lease]
        space.end_read(held)

    async def _finish_later(self, job: _Job, busy: Sequence[asyncio.Event]) -> None:
        for event in busy:
            await event.wait()
        self._finish(job)

    def _drop(self, job: _Job, reason: str) -> None:
        self._counters.dropped_demotions[reason] += job.size // job.space.size_class.slot_bytes
        self._finish(job)

    async def _cool(self, space: Residents) -> None:
        """Write the coldest runs of this size and let them go, until a share of its slots is free."""
        while not self._closed:
            limit = (self._max_bytes - self._waiting_bytes) // space.size_class.slot_bytes
            victim = self._room.next_victims(space, FREE_SHARE, limit) if limit > 0 else None
            if victim is None:  # or a device that hangs holds all that may wait: what is evicted now is lost
                return
            owner, run = victim
            path = owner.index.path(int(run[0]))
            match = Match(path, len(path) * owner.block_tokens)
            tokens = owner.index.tokens_to(int(run[0]))
            first = len(path) - len(run)
            end = self._admitted(owner, match, first)
            if end == len(path):
                self._push(owner, tokens, match, first)
                await self._write_all()
            if np.array_equal(owner.index.next_victims(len(run)), run):  # nobody has used them meanwhile
                owner.evict(min(len(run), self._room.may_take(owner, space)))
