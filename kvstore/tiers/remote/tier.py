"""RemoteTier: a store of last resort behind the Tier protocol: a shared directory, a bucket, or Valkey.

Nothing in it is trusted: what is read is checked against the question before it counts, and what is damaged is removed.
Reads, writes and lookups have a breaker each, so that a file system that became read-only still serves. Used from one
event loop. Whoever cancels a `get` may not reuse `into` before the deadline has passed.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..base import Failed, Got, Hit, Miss, Put, Record, Rejected, Stored, Usage, Wanted
from ..nvme.breaker import Breaker
from .counts import RemoteCounts
from .envelope import Envelope, Packed, Reading, Verdict
from .objects import FINGERPRINT_BYTES, Found, Name, Objects, Trouble

log = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 2.0  # of one read, whatever the caller would wait
TELLING_S = 0.05  # a shorter deadline that was missed says nothing of the store's health
REMOVED_AT_ONCE = 64
COUNT_S = 60.0  # between two counts; longer while one takes long
COUNT_SHARE = 20  # times what a count takes is left in peace after it
MOST_COUNT_S = 3600.0
KNOWN = 65536  # keys whose name is remembered, for drop; some 20 MB
BAD = 4096  # names that are damaged and could not be removed

_REJECTED = {"full": "full", "no_space": "full", "too_large": "too_large", "corrupt": "corrupt"}
_HARMLESS = {"full", "too_large", "corrupt"}  # say nothing of the store's health


class RemoteTier:
    """objects: closed with the tier. envelope: how blocks are packed and named; None = in clear. deadline_s: of a read,
    a lookup or a removal, at most. clock: of the breakers."""

    name = "remote"

    def __init__(
        self,
        objects: Objects,
        counts: RemoteCounts | None = None,
        *,
        envelope: Envelope | None = None,
        deadline_s: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.counts = counts or RemoteCounts()
        self.width = objects.width
        self.text = objects.text
        self._objects = objects
        self._envelope = envelope or Envelope()
        self._deadline_s = deadline_s
        self._clock = clock
        self._wall = wall
        self._breakers = {
            "read": Breaker("reads", clock),
            "write": Breaker("writes", clock),
            "lookup": Breaker("lookups", clock),
        }
        self._writing: dict[str, asyncio.Task[Put]] = {}
        self._names: OrderedDict[bytes, Name] = OrderedDict()  # by key
        self._bad: OrderedDict[str, None] = OrderedDict()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Count what is there, now and then, in the background."""
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        if self._closed:
            return [Miss() for _ in wanted]
        limit_s = min(deadline_s, self._deadline_s)
        by = asyncio.get_running_loop().time() + limit_s
        return list(await asyncio.gather(*(self._get(each, by, limit_s) for each in wanted)))

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        if self._closed:
            return [Rejected("closed") for _ in records]
        by = asyncio.get_running_loop().time() + deadline_s
        return list(await asyncio.gather(*(self._put(each, by, deadline_s) for each in records)))

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        """Of blocks that this process put or got; it does not know the namespace of others."""
        return list(await asyncio.gather(*(self._drop(self._names.pop(key, None)) for key in keys)))

    async def remove(self, fingerprint: bytes, blocks: Sequence[tuple[bytes, int]]) -> None:
        """As drop, of blocks of a namespace that anybody may have put, by key and ordinal."""
        for start in range(0, len(blocks), REMOVED_AT_ONCE):
            part = blocks[start : start + REMOVED_AT_ONCE]
            names = [self._envelope.name(fingerprint, key, at) for key, at in part]
            await asyncio.gather(*(self._drop(name) for name in names if isinstance(name, Name)))

    async def has(
        self, fingerprint: bytes, keys: Sequence[bytes], ordinals: Sequence[int], *, deadline_s: float
    ) -> list[bool]:
        """Which of these blocks of a prompt are there. Trouble, also when it is not the time to ask."""
        found = [self._envelope.name(fingerprint, key, at) for key, at in zip(keys, ordinals, strict=True)]
        names = [name for name in found if isinstance(name, Name)]
        if len(names) < len(found):
            return [False for _ in found]
        if self._closed or not self._breakers["lookup"].allow():
            raise Trouble("breaker", "not asked at present")
        try:
            there = await self._objects.exists(names, by=asyncio.get_running_loop().time() + deadline_s)
        except Trouble as trouble:
            self._failed("lookup", trouble, deadline_s)
            raise
        self._breakers["lookup"].success()
        return there

    async def clear(self, fingerprint: bytes) -> int:
        """Remove all blocks of a namespace, whoever wrote them; how many. What takes longer than a minute goes on."""
        if self._closed or len(fingerprint) != FINGERPRINT_BYTES:
            return 0
        try:
            return await self._objects.clear(fingerprint, by=asyncio.get_running_loop().time() + COUNT_S)
        except Trouble as trouble:
            self._failed("remove", trouble, 0.0)
            return 0

    def usage(self) -> Usage:
        return Usage(0, 0, 0) if self._closed else self._objects.usage()

    @property
    def evicted(self) -> int:
        """Objects that this process removed to make room."""
        return self._objects.evicted

    @property
    def ready(self) -> bool:
        """Whether it makes sense to ask now."""
        return not self._closed and self._breakers["read"].ready and self._breakers["lookup"].ready

    @property
    def takes(self) -> bool:
        """Whether it makes sense to write now."""
        return not self._closed and self._breakers["write"].ready

    def states(self) -> dict[str, str]:
        """By operation: what is wrong, for people; "" while nothing is known to be."""
        return {operation: breaker.state() for operation, breaker in self._breakers.items()}

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._names.clear()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
        await self._objects.close()

    async def _get(self, wanted: Wanted, by: float, limit_s: float) -> Got:
        name = self._envelope.name(wanted.fingerprint, wanted.key, wanted.ordinal)
        if isinstance(name, str) or name.text in self._bad:
            return Miss()
        if not self._breakers["read"].allow():
            return Failed("breaker")
        reading = self._envelope.reading(wanted)
        try:
            found = await self._objects.read(name, reading.head, reading.payload, by=by)
        except Trouble as trouble:
            self._failed("read", trouble, limit_s)
            return Failed("deadline" if trouble.reason == "deadline" else "io", trouble.until)
        self._breakers["read"].success()
        if found is None:
            return Miss()
        return await self._judge(wanted.key, name, reading, found)

    async def _judge(self, key: bytes, name: Name, reading: Reading, found: Found) -> Got:
        verdict, checksum = reading.check(found) if not reading.works else await _apart(lambda: reading.check(found))
        if verdict is Verdict.GOOD:
            self._know(key, name)
            return Hit(checksum)
        if verdict is Verdict.OTHER:
            return Miss()
        self.counts.bad_objects[verdict.value] += 1
        log.warning("%s: the object %s is %s, and is removed", self.text, name.text, verdict.value)
        if not await self._remove(name):
            self._bad[name.text] = None
            if len(self._bad) > BAD:
                self._bad.popitem(last=False)
        return Failed("corrupt")

    async def _put(self, record: Record, by: float, limit_s: float) -> Put:
        name = self._envelope.name(record.fingerprint, record.key, record.ordinal)
        if isinstance(name, str):
            return Rejected(name)
        text = name.text
        other = self._writing.get(text)
        if other is not None:  # the same bytes, being written for somebody else
            await asyncio.wait({other}, timeout=max(by - asyncio.get_running_loop().time(), 0.0))
            return other.result() if other.done() and isinstance(other.result(), Stored) else Failed("deadline")
        if not self._breakers["write"].allow():
            return Failed("breaker")
        task = self._writing[text] = asyncio.get_running_loop().create_task(self._write(record, name, by, limit_s))
        task.add_done_callback(lambda _: self._writing.pop(text, None))
        return await task

    async def _write(self, record: Record, name: Name, by: float, limit_s: float) -> Put:
        packed = await self._pack(record)
        if packed is None:
            return Rejected("corrupt")
        replace = record.replace or name.text in self._bad
        try:
            fresh = await self._objects.write(
                name, packed.head, packed.payload, packed.checksum, replace=replace, by=by
            )
        except Trouble as trouble:
            self._failed("write", trouble, limit_s)
            rejected = _REJECTED.get(trouble.reason)
            if rejected is not None:
                return Rejected(rejected)
            return Failed("deadline" if trouble.reason == "deadline" else "io", trouble.until)
        self._breakers["write"].success()
        self._bad.pop(name.text, None)
        self._know(record.key, name)
        if fresh:
            self.counts.uploaded_blocks += 1
        else:
            self.counts.present_blocks += 1
        return Stored()

    async def _pack(self, record: Record) -> Packed | None:
        wall_s = self._wall()
        if not self._envelope.seals(record):
            return self._envelope.pack(record, wall_s)
        return await _apart(lambda: self._envelope.pack(record, wall_s))

    async def _drop(self, name: Name | None) -> bool:
        return name is not None and not self._closed and bool(await self._remove(name))

    async def _remove(self, name: Name) -> bool | None:
        """None: it could not be."""
        try:
            return await self._objects.remove(name, by=asyncio.get_running_loop().time() + self._deadline_s)
        except Trouble as trouble:
            self._failed("remove", trouble, 0.0)
            return None

    def _know(self, key: bytes, name: Name) -> None:
        self._names[key] = name
        self._names.move_to_end(key)
        if len(self._names) > KNOWN:
            self._names.popitem(last=False)

    def _failed(self, operation: str, trouble: Trouble, limit_s: float) -> None:
        self.counts.failures[operation, trouble.reason] += 1
        breaker = self._breakers.get(operation)
        if breaker is None or trouble.reason in _HARMLESS or (trouble.reason == "deadline" and limit_s < TELLING_S):
            return
        if breaker.failure(str(trouble), sure=trouble.sure):
            log.warning("%s: no %ss for a while: %s", self.text, operation, trouble)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._objects.count(by=began + MOST_COUNT_S)
            except Trouble as trouble:
                self.counts.failures["count", trouble.reason] += 1
            except Exception:
                log.exception("%s: an error in the background", self.text)
            took_s = loop.time() - began
            await asyncio.sleep(min(max(COUNT_S, COUNT_SHARE * took_s), MOST_COUNT_S))


async def _apart(work: Callable[[], T]) -> T:
    """Compute in a thread. It ends soon, and has ended when this returns, cancelled or not: it writes to memory of the
    caller's."""
    job = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait({job})
        raise
