"""Reclaimer: turns segments that are mostly dead into free space, by copying what lives into one new segment.

Which segments is a matter of cost and benefit, after Rosenblum and Ousterhout, "The Design and Implementation of a
Log-Structured File System" (1992): free space gained times age, over bytes read and written. Several victims share a
new segment when what lives in them fits. The old files go only once the copies are on the disk, in a sealed segment;
readers go on meanwhile. A kill in between leaves both copies, and recovery keeps one. Owned by the event loop.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ....proto import PAGE_BYTES
from .breaker import Breaker
from .moving import Moved, Target, Unreadable, move_records
from .segment import Segment, exact_bytes

if TYPE_CHECKING:
    from .log import Log

MIN_GAIN = 1 / 16  # of what is read: to gain less is to wear the device out for nothing


class Reclaimer:
    """Works in the background as soon as space becomes scarce, until it is not, or nothing is to be gained."""

    def __init__(self, log: "Log") -> None:
        self._log = log
        self._running = False
        self._stopped = False
        self._progress = asyncio.Event()
        self.affordable = True  # within the write budget, when it was last tried
        # The device's own breaker does not see this: each try begins with writes that succeed.
        self._pause = Breaker("reclaiming", log.device.options.clock, threshold=1)

    def kick(self, *, probe: bool = False) -> None:
        """Something has changed: look whether there is work. probe: whoever asks may try a device that has failed."""
        usable = probe or self._log.device.writes.closed
        if not self._running and not self._stopped and self._scarce() and usable:
            self._running = True
            self._log.spawn(self._run())

    def stop(self) -> None:
        self._stopped = True
        self._progress.set()

    async def until_room(self) -> None:
        """Until another segment may be opened, or there is nothing left to try."""
        self.kick(probe=True)
        while self._running and not self._stopped and not self._log.has_room():
            self._progress.clear()
            await self._progress.wait()

    def _scarce(self) -> bool:
        segment = self._log.options.segment_bytes
        spare = min(2 * segment, self._log.capacity_bytes // 20)
        return self._log.free_bytes < 2 * segment + spare

    async def _run(self) -> None:
        try:
            await self._log.remove_leftovers()
            while self._scarce() and not self._stopped and self._pause.allow():
                if not (await self._pass() or await self._log.settled()):
                    break
                self._progress.set()
        finally:
            self._running = False
            self._progress.set()

    async def _pass(self) -> bool:
        """Empty some segments. False: nothing to gain, or the device or the budget does not let us."""
        self.affordable = True
        victims = self._choose()
        if not victims:
            return False
        size = self._size_of(victims)
        self.affordable = self._log.device.budget.allows(size)
        if not self.affordable:
            return False
        for victim in victims:
            victim.readers += 1
        try:
            copy = await self._log.create(size, None)
            if copy == "io":
                self._pause.failure("no segment can be made")
            return not isinstance(copy, str) and await self._move(victims, copy)
        finally:
            for victim in victims:
                victim.readers -= 1
                await self._log.remove_if_dead(victim)

    def _choose(self) -> list[Segment]:
        """Victims of one pass, best first. O(segments log segments)."""
        youngest = max((segment.newest for segment in self._log.segments.values()), default=0)
        scored: list[tuple[float, int, Segment]] = []
        for segment in self._log.segments.values():
            writing = segment.writing
            if segment.doomed or segment.unreadable or segment.tally is None:
                continue
            if writing is not None and (writing.pending or not writing.closed):
                continue
            gain = segment.size_bytes - segment.live_bytes
            if gain >= MIN_GAIN * segment.size_bytes:
                age = 1 + youngest - segment.newest
                scored.append((gain * age / (segment.size_bytes + segment.live_bytes), -segment.slot, segment))
        chosen: list[Segment] = []
        limit = min(self._log.options.segment_bytes, self._log.free_bytes)
        for _, _, segment in sorted(scored, reverse=True, key=lambda entry: entry[:2]):
            if self._size_of([*chosen, segment]) <= limit:
                chosen.append(segment)
        before = sum(segment.size_bytes for segment in chosen)
        return chosen if before - self._size_of(chosen) >= MIN_GAIN * before else []

    async def _move(self, victims: list[Segment], copy: Segment) -> bool:
        places: list[tuple[Segment, int, int]] = []  # where each record was, and its ordinal in the copy
        for victim in victims:
            for run in self._runs(victim):
                moved = await self._move_run(victim, run, copy)
                if moved is None or self._stopped:
                    self._discard(copy)
                    return False
                for ordinal, record in zip(run, moved, strict=True):
                    if record is not None:
                        places.append((victim, ordinal, copy.add(record.header, record.page, record.tokens)))
                    else:
                        self._lost(victim, ordinal)
        assert copy.writing is not None
        copy.writing.closed = True
        if places and not await self._log.seal(copy):
            self._pause.failure("no segment can be sealed")
            self._discard(copy)
            return False
        self._pause.success()
        await self._commit(places, copy)
        return True

    async def _commit(self, places: list[tuple[Segment, int, int]], copy: Segment) -> None:
        """The copies are on the disk: from now on they are the records."""
        index = self._log.index
        copy.count_in(self._log.tally)
        died = False
        for victim, ordinal, at in places:
            if victim.is_live(ordinal):
                index.move(victim, ordinal, copy, at)
            else:
                copy.kill(at)
                died = True
        if died:  # before the victims go, who know it on the disk
            await self._log.safety.mark([copy], sync=True)
        await self._log.safety.sync_directory()
        self._log.bury_if_dead(copy)

    async def _move_run(self, victim: Segment, run: list[int], copy: Segment) -> "list[Moved | None] | None":
        writing = copy.writing
        assert writing is not None
        handle = writing.handle
        assert handle is not None
        where = [(victim.pages[ordinal], victim.lengths[ordinal]) for ordinal in run]
        opener, path = self._log.device.opener, victim.path
        to, find = Target(handle, copy.header.ident, writing.next_page), self._log.options.find
        job = self._log.device.write(lambda scratch: move_records(opener, path, where, to, find, scratch))
        try:
            moved = await job.future
        except Unreadable as error:
            victim.unreadable = True
            self._log.device.failed(self._log.device.reads, error)
            return None
        except OSError as error:
            self._pause.failure("records cannot be moved")
            self._log.device.failed(self._log.device.writes, error)
            return None
        count = sum(record.header.record_pages for record in moved if record is not None)
        writing.next_page += count
        self._log.device.charge(count * PAGE_BYTES)
        return moved

    def _lost(self, victim: Segment, ordinal: int) -> None:
        """A damaged record is not carried over."""
        if victim.is_live(ordinal):
            self._log.index.drop(victim, ordinal)
            self._log.device.totals.corrupt_blocks += 1

    def _discard(self, copy: Segment) -> None:
        """Nothing has moved: the records are where they were."""
        for ordinal in list(copy.live_ordinals()):
            copy.kill(ordinal)
        assert copy.writing is not None
        copy.writing.closed = True
        self._log.bury_if_dead(copy)

    def _runs(self, victim: Segment) -> Iterator[list[int]]:
        """Live records that lie one after another, a request's worth at a time."""
        limit = self._log.options.request_bytes // PAGE_BYTES
        run: list[int] = []
        count, end = 0, -1
        for ordinal in sorted(victim.live_ordinals(), key=victim.pages.__getitem__):
            length = victim.lengths[ordinal]
            if run and (victim.pages[ordinal] != end or count + length > limit):
                yield run
                run, count = [], 0
            run.append(ordinal)
            count += length
            end = victim.pages[ordinal] + length
        if run:
            yield run

    def _size_of(self, victims: list[Segment]) -> int:
        """Bytes of the segment that what lives in them needs."""
        return exact_bytes(
            sum(victim.live_pages for victim in victims),
            sum(len(victim.groups) for victim in victims),
            sum(victim.live_row_bytes for victim in victims),
            self._log.options.version,
        )
