"""ReadPath: from keys to blocks in the caller's memory. Owned by the event loop."""

import asyncio
from collections.abc import Sequence
from functools import partial

from ....proto import PAGE_BYTES
from ..base import Failed, Got, Miss, Wanted
from .device import Options
from .index import RecordIndex
from .log import Log
from .requests import MAX_PARTS, ReadRequest, end_of_all, let_go
from .segment import Segment
from .transfer import Outcome, Reading, padded, read_records


class ReadPath:
    """See the module."""

    def __init__(self, index: RecordIndex[Log], options: Options) -> None:
        self._index = index
        self._options = options

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        """As Tier.get. A call that is cancelled ends when no device touches `into` any more."""
        answers: list[Got | None] = [None] * len(wanted)
        requests = self._plan_reads(wanted, answers)
        for request in requests:
            self._send_read(request, answers)
        futures = [request.job.future for request in requests if request.job is not None]
        if futures:
            try:
                await asyncio.wait(futures, timeout=max(0.0, deadline_s))
            except asyncio.CancelledError:
                await end_of_all([request.job for request in requests])
                raise
        for request in requests:
            if request.job is not None and not request.job.future.done():
                until = let_go(request.job)
                request.log.device.too_late(request.log.device.reads, request.log.device.readers)
                for position in request.positions:
                    answers[position] = Failed("deadline", until)
        return [answer if answer is not None else Failed("deadline") for answer in answers]

    def _plan_reads(self, wanted: Sequence[Wanted], answers: list[Got | None]) -> list[ReadRequest]:
        """Records that lie one after another go into one request."""
        cipher, find = self._options.cipher, self._options.find
        found: list[tuple[int, int, int, int, Log, Segment]] = []
        for position, each in enumerate(wanted):
            place = self._index.find(padded(each.key))
            if place is None:
                answers[position] = Miss()
                continue
            log, segment, ordinal = place
            group = segment.group(ordinal)
            asked = (each.fingerprint, each.block_bytes, len(each.tokens))
            if asked != (group.fingerprint, group.block_bytes, 4 * group.block_tokens):
                answers[position] = Miss()
                continue
            verdict = "give" if cipher is None else cipher.verdict(group)
            if verdict != "give":
                answers[position] = Miss()
                if verdict == "drop":
                    self._refuse(log, segment, ordinal)
                continue
            found.append((segment.slot, segment.pages[ordinal], position, ordinal, log, segment))
        found.sort(key=lambda entry: entry[:3])
        limit = self._options.request_bytes // PAGE_BYTES
        requests: list[ReadRequest] = []
        for _, page, position, ordinal, log, segment in found:
            head_pages = segment.head_pages(ordinal)
            count = segment.lengths[ordinal]
            if not requests or not requests[-1].continues(log, segment, page, count, limit, MAX_PARTS):
                requests.append(ReadRequest(log, segment))
            request = requests[-1]
            request.positions.append(position)
            request.ordinals.append(ordinal)
            key = find(segment.group(ordinal).key_id) if find is not None else None
            request.parts.append(
                Reading(wanted[position], page, head_pages, count - head_pages, segment.codec(ordinal), key)
            )
            request.pages += count
        return requests

    def _send_read(self, request: ReadRequest, answers: list[Got | None]) -> None:
        log, segment = request.log, request.segment
        if log.device.lost or not log.device.reads.allow():
            for position in request.positions:
                answers[position] = Failed("breaker")
            return
        segment.readers += 1
        opener, path, ident, parts = log.device.opener, segment.path, segment.header.ident, request.parts
        request.job = log.device.read(lambda scratch: read_records(opener, path, ident, parts, scratch))
        request.job.future.add_done_callback(partial(self._has_read, request, answers))

    def _has_read(self, request: ReadRequest, answers: list[Got | None], future: "asyncio.Future[Outcome]") -> None:
        """The thread is done with it, in time or not."""
        log, job = request.log, request.job
        assert job is not None
        if not future.cancelled():
            outcome = future.result()
            log.device.has_read(outcome, job.seconds)
            log.device.totals.open_failures += outcome.unopened
            for ordinal, position, answer in zip(request.ordinals, request.positions, outcome.answers, strict=True):
                if answers[position] is None:
                    answers[position] = answer
                if isinstance(answer, Failed):
                    self._condemn(request, ordinal, answer, outcome)
        log.reader_left(request.segment)

    def _refuse(self, log: Log, segment: Segment, ordinal: int) -> None:
        """A record in clear of a tenant that has a key, or none at all: it must not be there."""
        log.device.totals.clear_dropped_blocks += 1
        self._index.drop(segment, ordinal)
        log.safety.marks_due()
        log.bury_if_dead(segment)

    def _condemn(self, request: ReadRequest, ordinal: int, answer: Failed, outcome: Outcome) -> None:
        """A record that is damaged or cannot be read is gone, so that nobody waits for it again."""
        log, segment = request.log, request.segment
        if answer.reason == "corrupt":
            log.device.totals.corrupt_blocks += 1
        elif not log.device.condemns(outcome):
            return
        if self._index.owns(segment, ordinal):
            self._index.drop(segment, ordinal)
            log.safety.marks_due()
