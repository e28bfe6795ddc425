"""The saving half: reserve, copy, commit for each save(), within a bounded backlog. Copies through the worker.
Retention goes the same way, so that it finds the blocks that were saved before it.

Each admitted save is one coroutine on the bridge's loop. It ends in exactly one SaveDone, and not before the copy
has ended, since the engine reuses the pages from then on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..kvstore.types import Reserved
from ..proto import RetentionRange
from .base import SaveDone
from .link import Link
from .registration import Registration
from .worker import SaveResult, Transfer, Worker


@dataclass(frozen=True, slots=True)
class Ticket:
    """One save under way."""

    request_id: str
    tokens: bytes
    start: int
    pages: tuple[int, ...]
    fence: Any
    size_bytes: int
    retention: tuple[RetentionRange, ...]


class SaveSide:
    """Admits, drops and carries out saves; counts bytes in flight. save() is the engine's thread, the rest the loop."""

    def __init__(self, link: Link, registration: Registration, worker: Worker) -> None:
        self._link = link
        self._registration = registration
        self._worker = worker
        self._idle = threading.Condition()
        self._in_flight_bytes = 0
        self._closed = False
        # One after the other, in the order of save(): a save's first block hangs under blocks that an earlier one may
        # still be writing, and the store grants no slots under a parent that is not committed.
        self._turn = asyncio.Lock()

    def save(
        self, request_id: str, tokens: bytes, start: int, pages: Sequence[int], retention: Sequence[RetentionRange]
    ) -> None:
        link = self._link
        size = len(pages) * link.layout.block_bytes
        reason = self._admit(size) if pages else ""
        if pages and not reason:
            stop = start + len(pages)
            wanted, ranges = link.prefix(tokens, stop), clip(retention, start, stop)
            ticket = Ticket(request_id, wanted, start, tuple(pages), self._worker.copier.fence(), size, ranges)
            if link.bridge.submit(lambda: self._run(ticket)):
                return
            self._leave(size)
            reason = "busy"
        self._done(SaveDone(request_id, start, len(pages), 0), len(pages), reason)

    def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        """See KVConnector. Dropped when the store is away or too much is waiting for it."""
        link = self._link
        blocks = len(tokens) // link.block_bytes
        ranges = clip(retention, 0, blocks)

        async def send() -> None:
            async with self._turn:
                await self._retain(link.prefix(tokens, max(each.end for each in ranges)), ranges)

        if ranges and not self._closed and link.attached:
            link.bridge.submit(send)

    @property
    def in_flight_bytes(self) -> int:
        return self._in_flight_bytes

    def close(self, timeout_s: float) -> None:
        """Admit no more; wait up to timeout_s for those under way, as long as there is a store to take them."""
        self._closed = True
        if self._link.attached:
            with self._idle:
                self._idle.wait_for(lambda: self._in_flight_bytes == 0, timeout_s)

    def _admit(self, size: int) -> str:
        if self._closed or not self._link.attached:
            return "disconnected"
        with self._idle:
            total = self._in_flight_bytes + size
            # A single save larger than the backlog goes when it is alone: it could never go otherwise.
            if self._in_flight_bytes and total > self._link.limits.save_backlog_bytes:
                return "backlog"
            self._in_flight_bytes = total
        return ""

    def _leave(self, size: int) -> None:
        with self._idle:
            self._in_flight_bytes -= size
            self._idle.notify_all()

    def _done(self, event: SaveDone, dropped: int, reason: str) -> None:
        outbox = self._link.outbox
        outbox.save_done(event, saved_bytes=event.saved * self._link.layout.block_bytes, dropped=dropped, reason=reason)
        outbox.wake()

    async def _run(self, ticket: Ticket) -> None:
        count = len(ticket.pages)
        saved, dropped, reason = 0, count, "disconnected"  # what a task that the closing bridge cancels answers
        try:
            async with self._turn:
                saved, dropped, reason = await self._store(ticket)
        finally:
            self._leave(ticket.size_bytes)
            self._done(SaveDone(ticket.request_id, ticket.start, count, saved), dropped, reason)

    async def _store(self, ticket: Ticket) -> tuple[int, int, str]:
        """(blocks saved, blocks dropped, reason of the drop). Blocks that are present already are neither."""
        link, count = self._link, len(ticket.pages)
        limit_s = link.limits.save_deadline_s
        reason = await self._registration.ready(limit_s)
        if reason:
            return 0, count, reason
        call = link.client.reserve(ticket.tokens, start=ticket.start, count=count, retention=ticket.retention)
        reserved, reason = await link.bridge.ask(call, limit_s, self._abort)
        if reserved is None:
            return 0, count, reason
        await self._retain_present(ticket, reserved)
        if not reserved.lease:
            return 0, 0 if reserved.reason == "present" else count, reserved.reason
        blocks = len(reserved.blocks)
        # The store leaves out the present blocks at the front; with "full" and "backlog" also some at the end.
        short = ticket.start + count - (reserved.blocks[0] + blocks)
        committed = False
        try:
            result = await self._copy(ticket, reserved)
            if result.reason:
                return 0, blocks + short, result.reason
            answer, reason = await link.bridge.ask(link.client.commit(reserved.lease, result.checksums), limit_s, None)
            committed = answer is True
        finally:
            if not committed:
                link.bridge.follow_up(lambda: self._abort(reserved))
        if not committed:
            return 0, blocks + short, reason or "refused"
        return blocks, short, reserved.reason

    async def _retain_present(self, ticket: Ticket, reserved: Reserved) -> None:
        """Blocks that were there already are left out of the reservation, and so is their retention."""
        stop = reserved.blocks[0] if reserved.blocks else ticket.start
        if reserved.reason == "present":
            stop = ticket.start + len(ticket.pages)
        ranges = clip(ticket.retention, ticket.start, stop)
        if ranges:
            await self._retain(ticket.tokens, ranges)

    async def _retain(self, tokens: bytes, ranges: tuple[RetentionRange, ...]) -> None:
        await self._link.bridge.ask(self._link.client.retain(tokens, ranges), self._link.limits.save_deadline_s, None)

    async def _copy(self, ticket: Ticket, reserved: Reserved) -> SaveResult:
        """Have the worker fill the slots. Not to be abandoned: it ends only when the copy threads have let go."""
        if reserved.arena is None:
            return SaveResult((), "disconnected")
        transfer = Transfer(
            slots=reserved.slots,
            pages=[ticket.pages[block - ticket.start] for block in reserved.blocks],
            arena=reserved.arena,
            fence=ticket.fence,
            deadline=self._link.clock() + self._link.limits.save_deadline_s,
        )
        result = await self._link.bridge.from_thread(partial(self._worker.save, transfer))
        return result if result is not None else SaveResult((), "disconnected")

    async def _abort(self, reserved: Reserved) -> None:
        if reserved.lease:
            await self._link.bridge.ask(self._link.client.abort(reserved.lease), self._link.limits.late_s, None)


def clip(ranges: Sequence[RetentionRange], start: int, stop: int) -> tuple[RetentionRange, ...]:
    """The parts of these ranges that lie in blocks start..stop-1, in order."""
    cut = ((max(each.start, start), min(each.end, stop), each.retention) for each in ranges)
    return tuple(RetentionRange(first, end, retention) for first, end, retention in cut if first < end)
