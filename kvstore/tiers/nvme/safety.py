"""Safety: gets to the disk what must outlive the process, or the power: dead bits and data in flight to the medium.

Owned by the event loop, one for each device. Its writes go through the device's keeper, one at a time, in order.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from ....proto import PAGE_BYTES
from .device import Device
from .segment import Segment
from .upkeep import sync_file, write_marks
from .workers import Job

MARK_DELAY_S = 1.0


class Safety:
    """segments: the log's own table, by slot. spawn: runs a task of the log's."""

    def __init__(
        self, device: Device, segments: Mapping[int, Segment], spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self.directory_unsynced = True  # files were made or removed, by the process before us perhaps
        self._device = device
        self._segments = segments
        self._spawn = spawn
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def marks_due(self) -> None:
        """Records have died; the disk learns it within MARK_DELAY_S, of many at a time."""
        if self._timer is None and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(MARK_DELAY_S, self._later)

    async def mark(self, segments: Sequence[Segment], *, sync: bool) -> bool:
        """Write the dead bits of these segments. False: the device fails, and they stay due."""
        good = True
        for segment in segments:
            marks = segment.take_dirty()
            if not marks:
                continue
            self._device.charge(len(marks) * PAGE_BYTES)
            try:
                await self._mark_job(segment, marks, sync=sync).future
            except FileNotFoundError:
                self.directory_unsynced = True  # gone meanwhile, with its records
            except OSError as error:
                segment.put_back_dirty(marks)
                self._device.failed(self._device.writes, error)
                good = False
            else:
                segment.unsynced |= not sync
        return good

    async def sync(self) -> bool:
        """Everything written until now survives a power cut. False: the device says no."""
        good = await self.mark(list(self._segments.values()), sync=False)
        for segment in [segment for segment in self._segments.values() if segment.unsynced]:
            good &= await self._sync_data(segment)
        return await self.sync_directory() and good

    async def secure(self, segment: Segment) -> bool:
        """What was written to this one survives a power cut. False: the device says no."""
        return await self._sync_data(segment) and await self.sync_directory()

    async def sync_directory(self) -> bool:
        """Files made and removed until now stay so after a power cut."""
        if not self.directory_unsynced:
            return True
        self.directory_unsynced = False
        files, path = self._device.options.files, self._device.where.path
        try:
            await self._device.keeper.submit(lambda _: files.sync_directory(path)).future
        except OSError as error:
            self.directory_unsynced = True
            self._device.failed(self._device.writes, error)
            return False
        return True

    async def _sync_data(self, segment: Segment) -> bool:
        segment.unsynced = False
        try:
            await self._sync_job(segment).future
        except FileNotFoundError:
            self.directory_unsynced = True
        except OSError as error:
            segment.unsynced = True
            self._device.failed(self._device.writes, error)
            return False
        return True

    async def stop(self) -> None:
        """Sync once more."""
        self.end()
        await self.sync()

    def end(self) -> None:
        """Nothing more by itself."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _later(self) -> None:
        self._timer = None
        self._spawn(self._mark_all())

    async def _mark_all(self) -> None:
        if not self._device.budget.allows(PAGE_BYTES):
            return  # they stay due until a flush, a clear or the end
        await self.mark([segment for segment in self._segments.values() if segment.dirty], sync=False)

    def _mark_job(self, segment: Segment, marks: Sequence[tuple[int, bytes]], *, sync: bool) -> Job[None]:
        opener, path = self._device.opener, segment.path
        return self._device.keeper.submit(lambda _: write_marks(opener, path, marks, sync=sync))

    def _sync_job(self, segment: Segment) -> Job[None]:
        opener, path = self._device.opener, segment.path
        return self._device.keeper.submit(lambda _: sync_file(opener, path))
