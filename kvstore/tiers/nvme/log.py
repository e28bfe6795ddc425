"""Log: the segments of one device, and the bytes they take. Appends to the open one, seals it, removes dead ones.

Owned by the event loop. Invariants: `used_bytes` is what the files take at most, and never above the path's capacity;
puts leave one segment's worth of it free, so that reclaiming can always copy what lives before it removes the rest.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from ....proto import PAGE_BYTES
from ....proto.footer import TableBuilder
from ....proto.record import SegmentHeader
from .device import Device
from .index import RecordIndex
from .reclaim import Reclaimer
from .safety import Safety
from .segment import Segment, Tally, Writing, empty_bytes, file_name
from .types import DeviceStats
from .upkeep import create_segment, seal_segment, unlink_segment

log = logging.getLogger(__name__)

STATE_BYTES = 2 * PAGE_BYTES  # the state file, and the one that replaces it
LIVE_SHARE = 7 / 8  # of the space for sealed segments: the rest is garbage, so that reclaiming it is cheap


class Log:
    """foreign: files that hold what this program cannot read, and their bytes. next_number: of a new segment."""

    def __init__(
        self, device: Device, index: "RecordIndex[Log]", *, foreign: Mapping[Path, int], next_number: int
    ) -> None:
        self.device = device
        self.index = index
        self.options = device.options
        self.segments: dict[int, Segment] = {}
        self.tally = Tally()
        self.used_bytes = STATE_BYTES + sum(foreign.values())
        self.reclaimer = Reclaimer(self)
        self.safety = Safety(device, self.segments, self.spawn)
        self._foreign = dict(foreign)
        self._next_number = next_number
        self._open: Segment | None = None
        self._placing = asyncio.Lock()
        self._creating = asyncio.Lock()  # what one file takes must be seen by who asks how much is free for the next
        self._pending_pages = 0
        self._pending_row_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._upkeep: set[asyncio.Task[None]] = set()  # those that cut or remove files
        self._stopping = False
        self._over = False  # nothing is started any more

    # What recovery finds (before there is an event loop) --------------------------------------------------------------

    def adopt(self, segment: Segment) -> None:
        """A file that is there."""
        self.segments[segment.slot] = segment
        self.used_bytes += segment.size_bytes
        self.index.enrol(self, segment)

    def disown(self, segment: Segment) -> None:
        """Its file is gone."""
        self.used_bytes -= segment.size_bytes
        self.segments.pop(segment.slot, None)
        self.index.forget(segment)

    def cut(self, segment: Segment, size_bytes: int) -> None:
        """Its file has been cut there."""
        self.used_bytes -= segment.size_bytes - size_bytes
        segment.size_bytes = size_bytes

    def shrink(self) -> None:
        """Remove the oldest segments of a path that holds more than it may now."""
        while self.segments and self.used_bytes > self.capacity_bytes - self.options.segment_bytes:
            oldest = min(self.segments.values(), key=lambda segment: segment.newest)
            log.warning("%s: more than its capacity; removing %s", self.device.where.path, oldest.path.name)
            handle = oldest.writing.handle if oldest.writing is not None else None
            try:
                unlink_segment(self.options.files, oldest.path, handle)
            except OSError as error:
                self.device.failed(self.device.writes, error)
                return
            for ordinal in list(oldest.live_ordinals()):
                self.index.drop(oldest, ordinal)
            self.disown(oldest)

    # Space -----------------------------------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        return self.device.where.capacity_bytes

    @property
    def live_limit_bytes(self) -> int:
        """Of live records: as much as leaves garbage in every mix of segments, whatever footers take."""
        segment = self.options.segment_bytes
        sealed = self.capacity_bytes - STATE_BYTES - sum(self._foreign.values()) - 2 * segment
        share = LIVE_SHARE * (1 - empty_bytes(segment, self.options.version) / segment)
        return max(0, int(sealed * share) - self.tally.row_bytes)

    @property
    def pending_bytes(self) -> int:
        """Of records on their way to the device."""
        return self._pending_pages * PAGE_BYTES

    def refuse(self, count: int, row_sizes: int) -> str:
        """Why a record of `count` pages and this footer row cannot be taken now, "" = it can."""
        if self.pending_bytes >= self.options.max_pending_bytes:
            return "busy"
        owed = self._open.footer_bytes if self._open is not None else 2 * PAGE_BYTES
        if not self.device.budget.allows((self._pending_pages + count) * PAGE_BYTES + owed):
            return "budget"
        live = self.tally.bytes + (self._pending_pages + count) * PAGE_BYTES
        return "full" if live + self._pending_row_bytes + row_sizes > self.live_limit_bytes else ""

    def expect(self, count: int, row_sizes: int) -> None:
        """A record of that size is on its way; negative: it has come, or never will."""
        self._pending_pages += count
        self._pending_row_bytes += row_sizes

    def has_room(self) -> bool:
        """Whether another segment can be opened for puts."""
        return self.used_bytes + 2 * self.options.segment_bytes <= self.capacity_bytes

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self.used_bytes

    # Appending -------------------------------------------------------------------------------------------------------

    async def place(self, count: int, row_sizes: int) -> tuple[Segment, int] | str:
        """(segment, page) for records of `count` pages together; or why not: "full", "budget", "io". Until written() is
        called the segment stays open."""
        async with self._placing:
            segment = self._open
            if segment is None or not segment.fits(count, row_sizes):
                self._close_open()
                opened = await self._open_new()
                if isinstance(opened, str):
                    return opened
                segment = opened
            page = segment.append(count, row_sizes)
            assert segment.writing is not None
            segment.writing.pending += 1
            return segment, page

    def written(self, segment: Segment) -> None:
        """A write to a place has ended, well or not."""
        assert segment.writing is not None
        segment.unsynced = True
        segment.writing.pending -= 1
        self._seal_when_done(segment)

    def give_up(self, segment: Segment) -> None:
        """Nothing more is appended to it: a write has failed."""
        if segment is self._open:
            self._close_open()

    async def create(self, size_bytes: int, tally: Tally | None) -> Segment | str:
        """A new segment file, counted from now on; or why not: "full" (of others' files), "io"."""
        header = SegmentHeader(
            self._next_number,
            int.from_bytes(self.options.entropy(8), "little"),
            size_bytes,
            int(self.options.wall() * 1000),
            self.options.version,
        )
        self._next_number += 1
        path = self.device.where.path / file_name(header.number)
        segment = Segment(self.index.new_slot(), header, path, size_bytes, tally)
        self.used_bytes += size_bytes
        self.device.charge(PAGE_BYTES)
        opener, free = self.device.opener, self.device.where.min_free_bytes + STATE_BYTES
        try:
            async with self._creating:
                handle = await self.device.write(lambda _: create_segment(opener, path, header, free)).future
        except OSError as error:
            self.used_bytes -= size_bytes
            self.device.failed(self.device.writes, error)
            return "io"
        if handle is None:
            self.used_bytes -= size_bytes
            return "full"
        segment.writing = Writing(handle, TableBuilder(header.version), segment.first_page)
        self.segments[segment.slot] = segment
        self.index.enrol(self, segment)
        self.safety.directory_unsynced = True
        return segment

    async def seal(self, segment: Segment) -> bool:
        """Write the footer and cut the file. False: the device fails; the segment stays as it is, and can be read."""
        writing = segment.writing
        assert writing is not None
        assert not writing.pending
        handle = writing.handle
        assert handle is not None
        footer_bytes = segment.size_bytes - writing.next_page * PAGE_BYTES
        files, header, find = self.options.files, segment.header, self.options.find
        segment.unsynced = False  # from here on: bits that are written meanwhile may come too late for its sync
        job = self.device.write(lambda _: seal_segment(files, handle, header, writing.table, writing.next_page, find))
        try:
            size = await job.future
        except OSError as error:
            segment.unsynced = True
            self.device.failed(self.device.writes, error)
            return False
        self.device.charge(min(footer_bytes, size - writing.next_page * PAGE_BYTES))
        self.cut(segment, size)
        segment.writing = None
        self._close_handle(handle)
        return True

    async def _open_new(self) -> Segment | str:
        if not self.has_room():
            await self.reclaimer.until_room()
        if self._stopping:
            return "closed"
        if not self.has_room():
            return "full" if self.reclaimer.affordable else "budget"
        opened = await self.create(self.options.segment_bytes, self.tally)
        while opened == "full" and await self.settled() and self.has_room():
            opened = await self.create(self.options.segment_bytes, self.tally)
        if isinstance(opened, Segment):
            self._open = opened
            self.reclaimer.kick()
        return opened

    def _close_open(self) -> None:
        segment, self._open = self._open, None
        if segment is not None and segment.writing is not None:
            segment.writing.closed = True
            self._seal_when_done(segment)

    def _seal_when_done(self, segment: Segment) -> None:
        writing = segment.writing
        if writing is None or not writing.closed or writing.pending or self._over:
            return
        if segment.live:
            self._upkeep.add(self.spawn(self._sealed(segment)))
        else:
            self.bury_if_dead(segment)

    async def _sealed(self, segment: Segment) -> None:
        segment.readers += 1  # it must not go while its footer is written
        await self.seal(segment)
        self.reader_left(segment)
        self.reclaimer.kick()

    def _close_handle(self, handle: int) -> None:
        job = self.device.keeper.submit(lambda _: self.options.files.close(handle))
        job.future.add_done_callback(self.device.saved)

    # Removing --------------------------------------------------------------------------------------------------------

    def reader_left(self, segment: Segment) -> None:
        segment.readers -= 1
        self.bury_if_dead(segment)

    def bury_if_dead(self, segment: Segment) -> None:
        """Have the file removed when no record lives, nobody reads and nobody writes."""
        if self._is_dead(segment):
            segment.doomed = True
            self._upkeep.add(self.spawn(self._unlink(segment)))

    async def remove_leftovers(self) -> None:
        """Try again what could not be removed."""
        for segment in list(self.segments.values()):
            await self.remove_if_dead(segment)

    async def remove_if_dead(self, segment: Segment) -> None:
        """The same, and it is gone."""
        if self._is_dead(segment):
            segment.doomed = True
            await self._unlink(segment)

    def _is_dead(self, segment: Segment) -> bool:
        writing = segment.writing
        busy = writing is not None and (writing.pending or not writing.closed)
        return not (segment.live or segment.readers or busy or segment.doomed or self._over)

    async def _unlink(self, segment: Segment) -> None:
        handle = segment.writing.handle if segment.writing is not None else None
        segment.writing = None
        if not await self._unlinked(segment.path, handle):
            segment.doomed = False  # its bytes stay counted, and it is tried again when they are needed
            return
        self.disown(segment)
        self.reclaimer.kick()

    async def _unlinked(self, path: Path, handle: int | None) -> bool:
        files = self.options.files
        job = self.device.write(lambda _: unlink_segment(files, path, handle))
        try:
            await job.future
        except OSError as error:
            self.device.failed(self.device.writes, error)
            return False
        self.safety.directory_unsynced = True
        return True

    async def remove_foreign(self) -> None:
        """A namespace has been cleared, and these files may have blocks of it: a version that can read them, or a disk
        that is well again, must not bring those back."""
        for path, size in list(self._foreign.items()):
            log.warning("%s cannot be read and may hold blocks that were cleared; removing it", path)
            if await self._unlinked(path, None):
                del self._foreign[path]
                self.used_bytes -= size

    # State -----------------------------------------------------------------------------------------------------------

    def stats(self) -> DeviceStats:
        """For devices()."""
        device, totals = self.device, self.device.totals
        return DeviceStats(
            path=str(device.where.path),
            state=device.state(),
            capacity_bytes=self.capacity_bytes,
            used_bytes=self.used_bytes,
            live_bytes=self.tally.bytes,
            written_bytes=totals.written_bytes,
            accepted_bytes=totals.accepted_bytes,
            read_bytes=totals.read_bytes,
            errors=totals.errors,
            corrupt_blocks=totals.corrupt_blocks,
            budget_left_bytes=device.budget.left(),
            direct=device.opener.direct,
            segments=len(self.segments),
            foreign_segments=len(self._foreign),
            encrypted_blocks=totals.encrypted_blocks,
            open_failures=totals.open_failures,
            key_missing_blocks=totals.key_missing_blocks,
            clear_dropped_blocks=totals.clear_dropped_blocks,
        )

    def check(self) -> None:
        """AssertionError unless a recount agrees. O(segments)."""
        counted = [segment for segment in self.segments.values() if segment.tally is not None]
        assert self.tally.pages == sum(segment.live_pages for segment in counted)
        assert self.tally.row_bytes == sum(segment.live_row_bytes for segment in counted)
        files = (
            STATE_BYTES + sum(self._foreign.values()) + sum(segment.size_bytes for segment in self.segments.values())
        )
        assert self.used_bytes >= files, "files that are not counted"
        assert self.used_bytes <= self.capacity_bytes, "above the cap"

    # Life ------------------------------------------------------------------------------------------------------------

    async def settled(self) -> bool:
        """Until files that are being cut or removed have been. False: there were none."""
        self._upkeep = {task for task in self._upkeep if not task.done()}
        if not self._upkeep:
            return False
        await asyncio.wait(self._upkeep)
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """Seal, mark and remember what there is. May be cancelled, and then the next start has more to read."""
        self._stopping = True
        self.reclaimer.stop()
        try:
            self._close_open()
            while self._tasks:
                await asyncio.wait(list(self._tasks))
            self.device.save_budget()
            await self.safety.stop()
            await self.device.keeper.drain()
        finally:
            self._over = True
            self.safety.end()
            for task in self._tasks:
                task.cancel()
