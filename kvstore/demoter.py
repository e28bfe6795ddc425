"""Demoter: writes blocks from the arena to the lower tier, behind the engines' backs.

Inclusive: what is committed or read is offered at once, so that it survives a crash of this process. Exclusive: only
what is about to leave DRAM is. Either way a run of blocks waits, pinned, and is written root first: a block goes only
under a parent that is there. What is not taken is counted with its reason and offered again by the next request that
reads it. One writer; used on the store's loop.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..radix import Match
from .catalog import Catalog
from .depot import Depot
from .placement.admission import Admission, BlockFacts
from .residents import ABSENT, QUEUED, WRITTEN, Residents
from .retention import retention_of
from .room import Room
from .stats import Counters
from .tiers import Failed, Put, Record, Stored
from .write_behind import Job, WriteBehind, leading_stored, records_of

log = logging.getLogger(__name__)

BATCH_BYTES = 64 << 20  # of one put: enough for several large writes side by side
PUT_DEADLINE_S = 30.0
FREE_SHARE = 16  # exclusive: a sixteenth of the slots is kept free by writing ahead of eviction


@dataclass(slots=True, eq=False)
class _Batch:
    """The part of a job that goes into one put: blocks start .. start+len(keys)-1 of its path."""

    job: Job
    catalog: Catalog
    start: int
    keys: list[bytes]
    records: list[Record]
    pin: int  # the catalog's block right above, leased; -1 = none


class Demoter(WriteBehind):
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
        super().__init__(counters.dropped_demotions, lease_ids, max_bytes)
        self._depot = depot
        self._room = room
        self._admission = admission
        self._counters = counters
        self._exclusive = exclusive

    def offer(self, space: Residents, tokens: bytes, match: Match) -> None:
        """These blocks were just committed or read: those without a copy below may be written, if they are admitted."""
        if self._depot.present and not self._exclusive and len(match):
            self._enqueue(space, tokens, match.blocks)

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
                self._enqueue(space, index.tokens_to(tip), index.path(tip))
            if self._waiting_bytes > self._max_bytes // 2:
                await self.flush()

    def _enqueue(self, space: Residents, tokens: bytes, path: NDArray[np.int32]) -> None:
        absent = np.flatnonzero(space.index.col("below")[path] == ABSENT)
        if len(absent) and not self._closed:
            first = int(absent[0])
            self._push_fitting(space, tokens, path[: self._admitted(space, path, first)], first)

    def _mark(self, job: Job) -> None:
        job.space.index.col("below")[job.path[job.first :]] = QUEUED

    def _admitted(self, space: Residents, path: NDArray[np.int32], first: int) -> int:
        """The end of the leading run of blocks from `first` on that are worth writing."""
        why = self._depot.tier.refuses(space.fingerprint)
        if why:  # before room is made for what will not come
            self._dropped[why] += len(path) - first
            return first
        hits = space.index.col("hits")[path[first:]].tolist()
        said = retention_of(space.index, path[first:])
        fill, size = self._depot.fill, space.namespace.layout.block_bytes
        load_s = space.cost.load_s(self._depot.name, size)
        for place, (count, retention) in enumerate(zip(hits, said, strict=True)):
            depth = first + place
            compute_s = space.cost.compute_s(depth * space.block_tokens, space.block_tokens)
            if not self._admission.admit(BlockFacts(count, depth, size, fill, compute_s, load_s, retention)):
                self._dropped["not_admitted"] += len(hits) - place
                return depth
        return len(path)

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
                    self._end(job)
                else:
                    batches.append(batch)
            if batches:
                await self._write(batches)

    def _prepare(self, job: Job, planned: set[bytes]) -> _Batch | None:
        """What of a job is still to be written, with what it hangs under pinned; None = nothing."""
        if not job.live:
            return None
        catalog = self._depot.open(job.space)
        have = catalog.index.match(job.tokens)
        keys = job.space.index.keys(job.path, len(have))
        skipped = 0
        while skipped < len(keys) and keys[skipped] in planned:
            skipped += 1
        start, keys = len(have) + skipped, keys[skipped:]
        if not keys:
            return None
        planned.update(keys)
        records = records_of(job, start, keys)
        if len(have):
            catalog.index.lease(have.last)
        return _Batch(job, catalog, start, keys, records, have.last)

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
            if batch.pin >= 0:
                batch.catalog.index.release(batch.pin)
            self._end(batch.job, part)

    def _enter(self, batch: _Batch, answers: Sequence[Put]) -> int:
        """Put the leading stored blocks into the catalog; how many. Counts the others."""
        space, name = batch.job.space, self._depot.name
        stored = leading_stored(answers)
        known = len(batch.catalog.index.match(batch.job.tokens, limit=batch.start))
        if known < batch.start:  # the batch before fell short, or what was above was found corrupt
            self._dropped["no_parent"] += len(answers)
            return 0
        if stored:
            path = batch.job.path[batch.start : batch.start + stored]
            fresh = batch.catalog.add(batch.job.tokens, batch.start, batch.keys[:stored])
            said = space.index.retention(path[len(path) - len(fresh) :])
            batch.catalog.index.retain(fresh, priority=said.priority, ttl_s=said.ttl_s, pinned=said.pinned)
            self._counters.demoted_blocks[name] += stored
        self._count_dropped(answers[stored:])
        return stored

    def _settle(self, job: Job) -> None:
        space, path = job.space, job.path
        catalog = self._depot.of(space.fingerprint)
        have = len(catalog.index.match(job.tokens)) if catalog is not None else 0
        live = space.index.col("live")[path]
        marks = np.where(np.arange(len(path)) < have, WRITTEN, ABSENT).astype(np.uint8)
        space.index.col("below")[path[live]] = marks[live]

    async def _cool(self, space: Residents) -> None:
        """Write the coldest runs of this size and let them go, until a share of its slots is free."""
        while not self._closed:
            limit = self._room_for(space)
            victim = self._room.next_victims(space, FREE_SHARE, limit) if limit else None
            if victim is None:  # or a device that hangs holds all that may wait: what is evicted now is lost
                return
            owner, run = victim
            path = owner.index.path(int(run[0]))
            tokens = owner.index.tokens_to(int(run[0]))
            first = len(path) - len(run)
            if self._admitted(owner, path, first) == len(path):
                self._push(owner, tokens, path, first)
                await self._write_all()
            if np.array_equal(owner.index.next_victims(len(run)), run):  # nobody has used them meanwhile
                owner.evict(min(len(run), self._room.may_take(owner, space)))
