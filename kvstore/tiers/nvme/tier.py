"""NvmeTier: a crash-safe store of records by key, on one or more paths. It knows no prefixes: what leaves is for the
store to say, by drop.

Owned by one event loop, which decides everything; threads only move and check bytes, a request of several MiB at a
time, straight between segments and the caller's page-aligned memory. What was answered Stored survives the process from
then on, and a power cut after the next flush. See docs/formats.md for the files and tiers/base.py for the contract.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence

from ....proto import PAGE_BYTES
from ...errors import NvmeError
from ...security.keyring import KeyRing
from ..base import Got, Miss, Put, Record, Rejected, Usage, Wanted
from ..codec import RAW, Codec, CodecStats, Measured
from .cipher import Cipher, TenantOf
from .device import Options
from .files import Files, OsFiles
from .index import RecordIndex
from .log import Log
from .reading import ReadPath
from .segment import empty_bytes
from .startup import Tables, inventory, open_logs, release, take_paths
from .transfer import padded
from .types import DeviceStats, Inventory, NvmePath
from .writing import WritePath

log = logging.getLogger(__name__)

MAX_SEGMENT_BYTES = 512 << 20
CLOSE_S = 10.0


class NvmeTier:
    """See the module. Made by open()."""

    name = "nvme"

    def __init__(self, logs: Sequence[Log], index: RecordIndex[Log], options: Options, locks: Sequence[int]) -> None:
        self._logs = list(logs)
        self._index = index
        self._options = options
        self._locks = list(locks)
        self._reads = ReadPath(index, options)
        self._writes = WritePath(self._logs, index, options)
        self._known: Tables = {}  # what recovery has read, until the first inventory
        self._closed = False

    @classmethod
    def open(  # noqa: PLR0913  (each is a bound or a seam of its own)
        cls,
        paths: Sequence[NvmePath],
        *,
        files: Files = OsFiles(),  # noqa: B008  (it has no state)
        codec: Codec = RAW,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        entropy: Callable[[int], bytes] = os.urandom,
        segment_bytes: int = 256 << 20,
        request_bytes: int = 8 << 20,
        threads: int = 4,
        max_pending_bytes: int = 256 << 20,
        slow_s: float = 1.0,
        keys: KeyRing | None = None,
        tenant_of: TenantOf = lambda _: "",
    ) -> "NvmeTier":
        """Lock the paths and find what they hold. Blocks; needs no event loop.

        NvmeError: only the user can mend it (two stores on one path, not a directory, too small). A device that fails
        is no error: the tier goes on without it.

        codec:             of new blocks.
        clock, wall:       seconds, monotonic and since 1970.
        entropy:           so many random bytes.
        segment_bytes:     largest segment, at most 512 MiB; a path needs three of them.
        request_bytes:     largest device request, unless one record is larger.
        threads:           requests in flight, of each path and direction.
        max_pending_bytes: that may be waiting to be written to one path; more is Rejected("busy").
        slow_s:            a device call that takes longer counts as a failure.
        keys:              to encrypt blocks with, by tenant; None = they are written as they are. A path that has
                           encrypted blocks is not opened without keys.
        tenant_of:         the tenant of a namespace's fingerprint; None = not known now, and nothing new is written.
        """
        assert paths, "a tier without a path is a NullTier"
        assert segment_bytes % PAGE_BYTES == 0, segment_bytes
        assert empty_bytes(segment_bytes) < segment_bytes // 2 <= MAX_SEGMENT_BYTES // 2, segment_bytes
        options = Options(
            files=files,
            codec=codec,
            clock=clock,
            wall=wall,
            entropy=entropy,
            segment_bytes=segment_bytes,
            request_bytes=max(PAGE_BYTES, min(request_bytes, segment_bytes // 4)),
            threads=threads,
            max_pending_bytes=max_pending_bytes,
            slow_s=slow_s,
            cipher=None if keys is None else Cipher(keys, tenant_of),
        )
        taken = take_paths(paths, options)
        index: RecordIndex[Log] = RecordIndex()
        try:
            logs, tables = open_logs([device for device, _ in taken], index)
        except NvmeError:
            release(options.files, [lock for _, lock in taken])
            raise
        tier = cls(logs, index, options, [lock for _, lock in taken if lock is not None])
        tier._known = tables
        return tier

    def inventory(self) -> Iterator[Inventory]:
        """What can be got, for the store to build its index from. Blocks: meant for the start, where it is quick."""
        known, self._known = self._known, {}
        return inventory(self._index, known)

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        """As Tier.get. A call that is cancelled ends when no device touches `into` any more."""
        if self._closed:
            return [Miss() for _ in wanted]
        return await self._reads.get(wanted, deadline_s=deadline_s)

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        """As Tier.put. Records that follow one another are kept together. A call that is cancelled ends when no device
        touches a payload any more."""
        if self._closed:
            return [Rejected("closed") for _ in records]
        return await self._writes.put(records, deadline_s=deadline_s)

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        """As Tier.drop. On the disk within about a second: a block may come back when the process is killed before."""
        answers: list[bool] = []
        for key in keys:
            place = self._index.find(padded(key))
            answers.append(place is not None)
            if place is not None:
                home, segment, ordinal = place
                self._index.drop(segment, ordinal)
                home.bury_if_dead(segment)
                home.safety.marks_due()
                home.reclaimer.kick()
        return answers

    def refuses(self, fingerprint: bytes) -> str:
        """Why no block of that namespace is taken now: "no_key", "no_tenant"; "" = there is nothing against it."""
        cipher = self._options.cipher
        found = None if cipher is None else cipher.writing(fingerprint)
        return found if isinstance(found, str) else ""

    async def clear(self, fingerprint: bytes | None) -> int:
        """Forget a namespace's blocks, or all; how many. They do not come back after a restart, whatever happens after
        this has returned. What is being written will not become visible."""
        count = 0
        writing = self._writes.void(fingerprint)
        for home, segment in self._index.segments():
            for ordinal in segment.ordinals_of(fingerprint) if segment.tally is not None else ():
                self._index.drop(segment, ordinal)
                count += 1
            home.bury_if_dead(segment)
        if writing:
            await asyncio.wait(writing)
        for home in self._logs:
            await home.remove_foreign()
            await _make_sure(home)
        return count

    async def forget(self, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """As clear, of these blocks of a namespace; what is being written of all of it will not become visible."""
        writing = self._writes.void(fingerprint)
        await self.drop(keys)
        if writing:
            await asyncio.wait(writing)
        for home in self._logs:
            await _make_sure(home)

    async def flush(self, *, deadline_s: float) -> bool:
        """True: everything that was answered Stored before survives a power cut."""
        tasks = [asyncio.ensure_future(home.safety.sync()) for home in self._logs if not self._closed]
        if not tasks:
            return True
        done, late = await asyncio.wait(tasks, timeout=max(0.0, deadline_s))
        return not late and all(task.result() for task in done)

    def usage(self) -> Usage:
        """used_bytes: of all files; live_bytes: of records that can be got and those being written."""
        return Usage(
            capacity_bytes=sum(home.capacity_bytes for home in self._logs),
            used_bytes=sum(home.used_bytes for home in self._logs),
            blocks=len(self._index),
            live_bytes=sum(home.tally.bytes + home.pending_bytes for home in self._logs),
            live_limit_bytes=sum(home.live_limit_bytes for home in self._logs if not home.device.lost),
        )

    def devices(self) -> list[DeviceStats]:
        """One for each path, in their order."""
        return [home.stats() for home in self._logs]

    def codec(self) -> CodecStats | None:
        """What the codec of new blocks does; None when it is not one that measures itself."""
        codec = self._options.codec
        return codec.stats() if isinstance(codec, Measured) else None

    def bandwidth(self) -> tuple[float, float]:
        """Measured (read, write) bytes per second of single requests to the fastest path, 0.0 = not known yet."""
        devices = [home.device for home in self._logs]
        return max(each.read_pace.bytes_s for each in devices), max(each.write_pace.bytes_s for each in devices)

    async def close(self) -> None:
        """Write what a quick start needs, unlock the paths. Within CLOSE_S and a second, whatever the devices do; paths
        of which one hangs stay locked until the process ends."""
        if self._closed:
            return
        self._closed = True
        work = [*self._writes.under_way(), *(asyncio.ensure_future(home.stop()) for home in self._logs)]
        _, late = await asyncio.wait(work, timeout=CLOSE_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1.0)
        for home in self._logs:
            home.device.stop()
        self._index.clear()
        if not late:  # a write that hangs must not meet another owner's
            release(self._options.files, self._locks)

    def check(self) -> None:
        """AssertionError unless a recount agrees. O(records)."""
        self._index.check()
        for home in self._logs:
            home.check()


async def _make_sure(home: Log) -> None:
    """That what was dropped does not come back: all of it, what was dropped before, too."""
    if not await home.safety.sync():
        log.error("%s: what was cleared may come back after a restart", home.device.where.path)
    home.reclaimer.kick()
