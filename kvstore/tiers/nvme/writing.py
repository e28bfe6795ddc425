"""WritePath: from payloads in the caller's memory to records. Owned by the event loop.

A request is encoded (where there is a codec), given a place, written, and entered in the index, in this order; its
records are Stored when all of that is done.
"""

import asyncio
import errno
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import xxhash

from ....proto import PAGE_BYTES
from ....proto.encrypted import RecordKey
from ....proto.record import HASH_IDS, RecordHeader
from ..base import Failed, Put, Record, Rejected, Stored
from ..codec import RAW
from .device import Options
from .index import RecordIndex
from .log import Log
from .requests import MAX_PARTS, WriteRequest, end_of_all, let_go
from .segment import Segment, empty_bytes, record_cost
from .transfer import Storing, padded, write_records
from .workers import Scratch

Encoded: TypeAlias = tuple[bytes | None, int]
"""(stored bytes, their checksum); None = the payload as it is."""


class WritePath:
    """See the module."""

    def __init__(self, logs: Sequence[Log], index: RecordIndex[Log], options: Options) -> None:
        self._logs = logs
        self._index = index
        self._options = options
        self._writing: dict[WriteRequest, asyncio.Task[None]] = {}

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        """As Tier.put; the records of one call go to as few places as possible, in order. A call that is cancelled ends
        when no device touches a payload any more."""
        answers: list[Put | None] = [None] * len(records)
        twins: dict[int, int] = {}
        requests = self._plan_writes(records, answers, twins)
        loop = asyncio.get_running_loop()
        for request in requests:
            task = loop.create_task(self._write(request, answers))
            self._writing[request] = task
            task.add_done_callback(partial(self._has_written, request))
        tasks = [self._writing[request] for request in requests]
        if tasks:
            try:
                done, _ = await asyncio.wait(tasks, timeout=max(0.0, deadline_s))
            except asyncio.CancelledError:
                for request in requests:
                    request.abandoned = True
                await end_of_all([request.job for request in requests])
                raise
            for task in done:
                if not task.cancelled():
                    task.result()
        for request, task in zip(requests, tasks, strict=True):
            if not task.done() or task.cancelled():  # cancelled: by close()
                request.abandoned = True
                until = let_go(request.job)
                request.log.device.too_late(request.log.device.writes, request.log.device.writers)
                for position in request.positions:
                    answers[position] = Failed("deadline", until)
        for position, twin in twins.items():
            answers[position] = answers[twin]
        return [answer if answer is not None else Failed("deadline") for answer in answers]

    def _plan_writes(
        self, records: Sequence[Record], answers: list[Put | None], twins: dict[int, int]
    ) -> list[WriteRequest]:
        limit = self._options.request_bytes // PAGE_BYTES
        requests: list[WriteRequest] = []
        seen: dict[bytes, int] = {}
        for position, record in enumerate(records):
            assert record.payload.nbytes >= record.block_bytes, "a payload shorter than its block"
            key = padded(record.key)
            secret = self._key_of(record)
            encrypted = secret is not None
            cost = record_cost(len(record.tokens) // 4, record.block_bytes, encrypted=encrypted)
            if isinstance(secret, str):
                answers[position] = Rejected(secret)
            elif self._has(key) and not record.replace:
                answers[position] = Stored()
            elif key in seen:
                twins[position] = seen[key]
            elif cost[0] * PAGE_BYTES + cost[1] + self._empty_bytes > self._largest():
                answers[position] = Rejected("too_large")
            else:
                last = requests[-1] if requests else None
                fits = last is not None and last.pages + cost[0] <= limit and len(last.records) < MAX_PARTS
                if last is None or not fits or last.log.refuse(*cost):
                    log = self._choose(cost)
                    if not isinstance(log, Log):
                        answers[position] = log
                        continue
                    last = WriteRequest(log)
                    requests.append(last)
                seen[key] = position
                last.log.expect(*cost)
                last.positions.append(position)
                last.records.append(record)
                last.costs.append(cost)
                last.keys.append(secret)
                last.pages += cost[0]
        return requests

    def _key_of(self, record: Record) -> RecordKey | str | None:
        """What to encrypt it with, None = nothing; or why it must not be written."""
        cipher = self._options.cipher
        return None if cipher is None else cipher.writing(record.fingerprint)

    @property
    def _empty_bytes(self) -> int:
        return empty_bytes(self._options.segment_bytes, self._options.version)

    def _has(self, key: bytes) -> bool:
        """Whether a copy is there that can be got now."""
        place = self._index.find(key)
        return place is not None and place[0].device.reads.closed

    def _spare(self, part: Storing) -> bool:
        """Whether a copy has come meanwhile, and this one is for nothing."""
        return self._has(part.header.key) and not part.record.replace

    def _largest(self) -> int:
        """What one record may take, everything included."""
        limits = [log.live_limit_bytes + log.tally.row_bytes for log in self._logs if not log.device.lost]
        return min(self._options.segment_bytes, max(limits, default=0) + self._empty_bytes)

    def _choose(self, cost: tuple[int, int]) -> Log | Put:
        """The log with the least to do and the most room, of those that take a record of that cost; or why none."""
        reasons: list[str] = []
        fit: list[Log] = []
        for log in self._logs:
            # Not "closed": a path whose blocks are all gone is never read, and would stay out of use for ever.
            out = log.device.lost or not log.device.writes.ready or not log.device.reads.ready
            reason = "breaker" if out else log.refuse(*cost)
            if reason:
                reasons.append(reason)
            else:
                fit.append(log)
        for log in sorted(fit, key=lambda log: (log.pending_bytes, log.tally.bytes / max(1, log.live_limit_bytes))):
            if log.device.writes.allow():
                return log
        worst = [reason for reason in reasons if reason != "breaker"]
        return Rejected(worst[0]) if worst else Failed("breaker")

    async def _write(self, request: WriteRequest, answers: list[Put | None]) -> None:
        log = request.log
        try:
            encoded = await self._encode(request)
            if encoded is None or request.abandoned:
                return
            rows = zip(request.records, encoded, request.keys, strict=True)
            parts = [self._storing(record, each, key) for record, each, key in rows]
            count = sum(part.pages for part in parts)
            place = await log.place(count, sum(cost[1] for cost in request.costs))
            if isinstance(place, str):
                _answer(request, answers, Failed(place) if place == "io" else Rejected(place))
                return
            segment, page = place
            parts = [_placed(part, segment, next(self._index.sequences)) for part in parts]
            try:
                if not request.abandoned:
                    good = await self._send(request, segment, page, parts)
                    if isinstance(good, list) and any(part.header.key in self._index for part in parts):
                        # Copies die for these: not before these survive a power cut.
                        good = good if await log.safety.secure(segment) else OSError(errno.EIO, "not synced")
                    self._adopt(request, answers, segment, page, parts, good)
            finally:
                log.written(segment)
        finally:
            for cost in request.costs:
                log.expect(-cost[0], -cost[1])

    async def _encode(self, request: WriteRequest) -> Sequence[Encoded] | None:
        """What the codec makes of each payload, and its checksum; None: given up."""
        codec, records = self._options.codec, request.records
        if codec.ident == RAW.ident:
            return [(None, record.checksum) for record in records]

        def run(_: Scratch) -> list[Encoded]:
            encoded: list[Encoded] = []
            for record in records:
                stored = codec.encode(record.payload[: record.block_bytes], record.itemsize)
                encoded.append((stored, record.checksum if stored is None else xxhash.xxh3_64_intdigest(stored)))
            return encoded

        job = request.job = request.log.device.write(run)
        await asyncio.wait([job.future])
        return None if job.future.cancelled() else job.future.result()

    def _storing(self, record: Record, encoded: Encoded, key: RecordKey | None) -> Storing:
        stored, checksum = encoded
        header = RecordHeader(
            hash_id=HASH_IDS[record.hash_name],
            codec=RAW.ident if stored is None else self._options.codec.ident,
            priority=record.retention.priority,
            pinned=record.retention.pinned,
            segment=0,
            sequence=0,
            written_ms=int(self._options.wall() * 1000),
            ttl_s=record.retention.ttl_s,
            block_tokens=len(record.tokens) // 4,
            item_bytes=record.itemsize,
            block_bytes=record.block_bytes,
            stored_bytes=record.block_bytes if stored is None else len(stored),
            block_checksum=record.checksum,
            stored_checksum=checksum,
            fingerprint=record.fingerprint,
            key=padded(record.key),
            parent=padded(record.parent),
            key_id=b"" if key is None else key.ident,
        )
        return Storing(record, header, stored, key)

    async def _send(
        self, request: WriteRequest, segment: Segment, page: int, parts: list[Storing]
    ) -> list[bool] | OSError | None:
        """For each record whether it is there; None: given up before anything was written."""
        device, files = request.log.device, self._options.files
        assert segment.writing is not None
        handle = segment.writing.handle
        assert handle is not None
        job = request.job = device.write(lambda scratch: write_records(files, handle, page, parts, scratch))
        await asyncio.wait([job.future])
        if job.future.cancelled():
            return None
        device.charge(sum(part.pages for part in parts) * PAGE_BYTES)
        error = job.future.exception()
        if isinstance(error, OSError):
            device.failed(device.writes, error)
            return error
        good = job.future.result()
        device.has_written(sum(part.pages for part in parts) * PAGE_BYTES, job.seconds)
        return good

    def _adopt(
        self,
        request: WriteRequest,
        answers: list[Put | None],
        segment: Segment,
        page: int,
        parts: list[Storing],
        good: list[bool] | OSError | None,
    ) -> None:
        """Enter what has been written; what nobody waits for any more, or nobody may get, dies at once."""
        log = request.log
        if good is None:
            return
        if isinstance(good, OSError):
            log.give_up(segment)
            for part in parts:
                segment.bury(page)  # it may be there in spite of all
                page += part.pages
            _answer(request, answers, Failed("io"))
            return
        for position, part, whole in zip(request.positions, parts, good, strict=True):
            if not whole:
                answers[position] = answers[position] or Rejected("corrupt")
                page += part.pages
                continue
            ordinal = segment.add(part.header, page, part.record.tokens)
            page += part.pages
            log.device.totals.accepted_bytes += part.pages * PAGE_BYTES
            log.device.totals.encrypted_blocks += part.key is not None
            if request.abandoned or part.record.fingerprint in request.void or self._spare(part):
                segment.kill(ordinal)
            else:
                self._supersede(part.header.key)
                self._index.put(segment, ordinal)
            answers[position] = answers[position] or Stored()
        if segment.dirty:
            log.safety.marks_due()

    def _supersede(self, key: bytes) -> None:
        """A copy that cannot be got now, or is replaced, is dead from now on."""
        place = self._index.find(key)
        if place is not None:
            log, segment, ordinal = place
            self._index.drop(segment, ordinal)
            log.safety.marks_due()

    def _has_written(self, request: WriteRequest, task: "asyncio.Task[None]") -> None:
        del self._writing[request]

    def void(self, fingerprint: bytes | None) -> "list[asyncio.Task[None]]":
        """What is being written of a namespace, or of all, must not become visible; what does that."""
        tasks: list[asyncio.Task[None]] = []
        for request, task in self._writing.items():
            theirs = {record.fingerprint for record in request.records if fingerprint in (None, record.fingerprint)}
            request.void |= theirs
            if theirs:
                tasks.append(task)
        return tasks

    def under_way(self) -> "list[asyncio.Task[None]]":
        return list(self._writing.values())


def _answer(request: WriteRequest, answers: list[Put | None], answer: Put) -> None:
    for position in request.positions:
        answers[position] = answers[position] or answer


def _placed(part: Storing, segment: Segment, sequence: int) -> Storing:
    header = part.header._replace(segment=segment.header.ident, sequence=sequence)
    return Storing(part.record, header, part.stored, part.key)
