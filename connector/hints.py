"""Hints: what the store is told and does not answer: prefetches, what prefill took, what is in HBM, what requests got.

Called from the engine's thread; sent from the bridge's loop, in order. A hint that cannot be sent is forgotten: nothing
but speed depends on it. Retention is a hint too, but has to come behind the saves: see saves.py. What prefill takes is
also kept here, since nobody waits for a store any longer than computing would take.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from itertools import count
from typing import Any

from ..kvstore.arena import ArenaView
from ..kvstore.placement import CostModel
from ..kvstore.types import HbmChange, Receipt
from .link import Link

# Observations that wait to be sent: plenty for what changes slowly, and little work, here and in the store.
MAX_OBSERVATIONS = 8
MAX_CHANGES, MAX_REPORT_BYTES = 256, 1 << 20  # of what is in HBM, in one message


class Hints:
    """Standing prefetches by request, and the observations that wait for the next message.

    cost: learns from them too; the loop's.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.cost = CostModel()
        self._tickets: dict[str, int] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._observations: deque[tuple[int, int, float]] = deque(maxlen=MAX_OBSERVATIONS)
        self._sending = False
        self._saying = asyncio.Lock()
        self._told: weakref.ref[ArenaView] | None = None  # the session that knows what is in HBM

    @property
    def standing(self) -> int:
        """Prefetches that are neither cancelled nor followed by a fetch. Any thread may ask."""
        return len(self._tickets)

    def prefetch(self, request_id: str, tokens: bytes, hbm_blocks: int) -> bool:
        """See KVConnector. A request's second prefetch takes the place of its first."""
        link = self._link
        whole = link.prefix(tokens, len(tokens) // link.block_bytes)
        self.cancel(request_id)
        if not link.attached or len(self._tickets) >= link.limits.max_prefetches:
            return False
        ticket = next(self._numbers)

        async def send() -> None:
            await self._tell(link.client.prefetch(ticket, whole, skip=hbm_blocks))

        if not link.bridge.submit(send):
            return False
        self._tickets[request_id] = ticket
        link.outbox.count("prefetches")
        return True

    def cancel(self, request_id: str) -> None:
        """The request fetches now, or never will. Unknown ids are ignored."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is None:
            return

        async def send() -> None:
            await self._tell(self._link.client.cancel_prefetch(ticket))

        self._link.bridge.follow_up(send)

    def observe(self, first: int, tokens: int, seconds: float) -> None:
        """See KVConnector. Only the latest MAX_OBSERVATIONS of an interval are sent."""
        with self._lock:
            self._observations.append((first, tokens, seconds))
            begin = not self._sending and self._link.attached
            self._sending = self._sending or begin
        if begin and not self._link.bridge.submit(self._report):
            self._sending = False

    def served(self, receipt: Receipt) -> None:
        """See KVConnector. Not sent while there is no store, or too many calls wait for it."""
        link = self._link

        async def send() -> None:
            await self._tell(link.client.served(receipt))

        sent = link.attached and link.bridge.submit(send)
        link.outbox.count("receipts" if sent else "dropped_receipts")

    def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> bool:
        """See KVConnector. A session that begins, and one that missed something, is told all before it is told what
        changed."""
        link, arena = self._link, self._link.client.arena
        if arena is None:
            self._told = None
            return False
        if not whole and (self._told is None or self._told() is not arena):
            return False
        if not changes and not whole:
            return True

        async def send() -> None:
            async with self._saying:  # one report after the other
                for at, part in enumerate(_parts(changes)):
                    if link.client.arena is arena:  # else it was meant for a session that is over
                        await self._tell(link.client.hbm(part, whole=whole and at == 0))

        # A view is made for each session, and remembered weakly: nothing of a lost one is kept.
        self._told = weakref.ref(arena) if link.bridge.submit(send) else None
        return self._told is not None

    async def _report(self) -> None:
        try:
            await asyncio.sleep(self._link.limits.observe_every_s)
        finally:
            with self._lock:
                batch = list(self._observations)
                self._observations.clear()
                self._sending = False
        for first, tokens, seconds in batch:
            self.cost.observe_prefill(first, tokens, seconds)
        await self._tell(self._link.client.observe(batch))

    async def _tell(self, call: Coroutine[Any, Any, None]) -> None:
        await self._link.bridge.ask(call, self._link.limits.save_deadline_s, None)


def _parts(changes: Sequence[HbmChange]) -> Iterator[list[HbmChange]]:
    """In messages of bounded size, at least one."""
    part: list[HbmChange] = []
    size_bytes = 0
    for change in changes:
        if len(part) >= MAX_CHANGES or size_bytes > MAX_REPORT_BYTES:
            yield part
            part, size_bytes = [], 0
        part.append(change)
        size_bytes += len(change.tokens)
    yield part
