"""Uploader: writes blocks from the arena to the store of last resort, behind the engines' backs.

What is committed or read is offered at once. It waits, pinned, and is written root first: a block goes only under a
parent that is there. What is there already is not sent again; that it is still in use is noted there every REFRESH_S,
so that what is hot here does not grow cold there. What is not taken is counted with its reason and offered again by the
next request that reads it. One writer; used on the store's loop.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...radix import Match
from ..elsewhere import REMOTE
from ..placement.admission import BlockFacts
from ..placement.cost import IoCost, TierCost
from ..residents import ABSENT, Residents
from ..retention import retention_of
from ..stats import Counters, TierStats
from ..tiers import Put, Record, Stored
from ..write_behind import Job, WriteBehind, leading_stored, records_of
from .remote import Remote

log = logging.getLogger(__name__)

BATCH_BYTES = 16 << 20  # of one put; its blocks are written side by side
PUT_DEADLINE_S = 30.0
REFRESH_S = 1800  # that a block is taken to be there, since it was last seen or written
QUEUED = 2**32 - 1  # column `remote`: ABSENT, QUEUED, or the second at which it was last known to be there


class Uploader(WriteBehind):
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
        super().__init__(remote.tier.counts.dropped_uploads, lease_ids, max_bytes)
        self.remote = remote
        self._tier = remote.tier
        self._admission = remote.admission
        self._counters = counters
        self._io = io
        self._clock = clock
        self._began_s = clock()
        self._epoch = 0  # moves at each clear

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
        self._push_fitting(space, tokens, match.blocks[:end], first)

    def saw(self, space: Residents, tokens: bytes, first: int) -> None:
        """Blocks `first`.. of these tokens came from there just now."""
        space.index.col("remote")[space.index.match(tokens).blocks[first:]] = self._now()

    async def clear(self, fingerprint: bytes | None) -> None:
        """Remove a namespace there, too. Not all of them (None): others use the store as well."""
        self._epoch += 1
        if fingerprint is not None:
            await self._tier.clear(fingerprint)

    async def remove(self, fingerprint: bytes, blocks: Sequence[tuple[bytes, int]]) -> None:
        """Remove blocks, given by key and ordinal, there too, whoever wrote them."""
        self._epoch += 1
        await self._tier.remove(fingerprint, blocks)

    async def stop(self) -> None:
        """Give up what waits, and close the tier. What is being written ends by itself."""
        self.close()
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

    def _now(self) -> int:
        """Seconds, such that ABSENT is older than anything that is there."""
        return int(self._clock() - self._began_s) + REFRESH_S + 1

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

    def _mark(self, job: Job) -> None:
        marks, blocks = job.space.index.col("remote"), job.path[job.first :]
        marks[blocks[marks[blocks] < self._now() - REFRESH_S]] = QUEUED

    async def _write_all(self) -> None:
        while self._queue:
            job = self._queue.popleft()
            answers: Sequence[Put] = ()
            try:
                answers = await self._write(job)
            except Exception:
                log.exception("the remote tier failed in a way it should not")
            self._end(job, answers)

    async def _write(self, job: Job) -> Sequence[Put]:
        """Batch after batch, until one falls short; the answers to that one."""
        space, path = job.space, job.path
        above = int(space.index.col("remote")[path[job.first - 1]]) if job.first else QUEUED
        if above == ABSENT:  # what should have come before it did not
            self._dropped["no_parent"] += job.blocks
            return []
        step = max(1, BATCH_BYTES // space.size_class.slot_bytes)
        epoch = self._epoch
        for start in range(job.first, len(path), step):
            if not job.live or epoch != self._epoch:
                return []
            records = records_of(job, start, space.index.keys(path[: start + step], start))
            answers = await self._put(records)
            if epoch != self._epoch:
                await self._tier.drop([record.key for record in records])
            elif leading_stored(answers) == len(answers):
                space.index.col("remote")[path[start : start + len(records)]] = self._now()
                continue
            else:
                await self._fell_short(job, start, records, answers)
            return answers
        return []

    async def _put(self, records: Sequence[Record]) -> list[Put]:
        counts = self._tier.counts
        with self._io.measure(REMOTE, "write", self._clock) as measured:
            fresh = counts.uploaded_blocks
            answers = await self._tier.put(records, deadline_s=PUT_DEADLINE_S)
            fresh = counts.uploaded_blocks - fresh
            measured.size_bytes = fresh * records[0].block_bytes if fresh == len(records) else 0
        self._counters.written_bytes[REMOTE] += fresh * records[0].block_bytes
        self._counters.came_bytes[REMOTE] += fresh * records[0].block_bytes
        self._counters.demoted_blocks[REMOTE] += fresh
        return answers

    async def _fell_short(self, job: Job, start: int, records: Sequence[Record], answers: Sequence[Put]) -> None:
        """Keep the leading blocks that are there, count why the others are not, leave none without its parent."""
        stored, path = leading_stored(answers), job.path
        job.space.index.col("remote")[path[start : start + stored]] = self._now()
        self._count_dropped(answers[stored:])
        self._dropped["no_parent"] += len(path) - start - len(records)
        orphans = zip(records[stored:], answers[stored:], strict=True)
        await self._tier.drop([record.key for record, answer in orphans if isinstance(answer, Stored)])

    def _settle(self, job: Job) -> None:
        marks, mine = job.space.index.col("remote"), job.path[job.first :]
        marks[mine[job.space.index.col("live")[mine] & (marks[mine] == QUEUED)]] = ABSENT
