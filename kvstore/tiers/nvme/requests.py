"""Requests: a run of records on their way from or to one device, and who waits for them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....proto.encrypted import RecordKey
from ..base import Record
from .log import Log
from .segment import Segment
from .transfer import Outcome, Reading
from .workers import Job

MAX_PARTS = 256  # records in a request: two buffers each, and preadv takes 1024


@dataclass(slots=True, eq=False)
class ReadRequest:
    """positions: of the parts in the caller's batch; ordinals: in the segment."""

    log: Log
    segment: Segment
    positions: list[int] = field(default_factory=list[int])
    ordinals: list[int] = field(default_factory=list[int])
    parts: list[Reading] = field(default_factory=list[Reading])
    pages: int = 0
    job: Job[Outcome] | None = None

    def continues(self, log: Log, segment: Segment, page: int, count: int, limit_pages: int, limit_parts: int) -> bool:
        """Whether a record there is read by the same call."""
        if self.log is not log or self.segment is not segment or len(self.parts) >= limit_parts:
            return False
        last = self.parts[-1]
        return last.page + last.pages == page and self.pages + count <= limit_pages


@dataclass(slots=True, eq=False)
class WriteRequest:
    """costs: (pages, footer row bytes) of each record, as the log expects them. keys: to encrypt each with. job: what
    may touch the payloads now. abandoned: nobody waits any more. void: namespaces that were cleared before it was
    written."""

    log: Log
    positions: list[int] = field(default_factory=list[int])
    records: list[Record] = field(default_factory=list[Record])
    costs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    keys: list[RecordKey | None] = field(default_factory=list["RecordKey | None"])
    pages: int = 0
    job: Job[Any] | None = None
    abandoned: bool = False
    void: set[bytes] = field(default_factory=set[bytes])


def let_go(job: Job[Any] | None) -> asyncio.Event | None:
    """Keep a job from running. None: it will not; else it runs, and the event is set when it has ended."""
    if job is None or job.future.done() or job.cancel():
        return None
    ended = asyncio.Event()
    job.future.add_done_callback(_setting(ended))
    return ended


def _setting(event: asyncio.Event) -> Callable[[object], None]:
    return lambda _: event.set()


async def end_of_all(jobs: Sequence[Job[Any] | None]) -> None:
    """Keep them from running, and wait for those that run already."""
    events = [event for job in jobs if (event := let_go(job)) is not None]
    if events:
        await asyncio.gather(*(event.wait() for event in events))
