"""Feed: what comes and goes in a store, as numbered batches in a ring that all subscribers read from.

A subscriber is a place in the ring. One that is where the ring has been written over, or that comes from another epoch,
gets a snapshot of everything and goes on from the sequence at which that was taken: a slow one costs the store neither
memory nor time, however many there are. While nobody subscribes, and for LINGER_S after the last, nobody watches the
store, and nothing is hashed. Used on the store's loop.

Invariant: whoever applies all batches from a snapshot on holds what the store held at that sequence.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import KvterraceError
from ..watch import Watcher
from .hbm import Hbm
from .types import Batch, Event
from .writer import Writer

BATCH_S = 0.01  # what changes together goes together
BATCH_BYTES = 1 << 20
RING_BATCHES = 10_000
RING_BYTES = 32 << 20
MAX_SUBSCRIBERS = 64
SNAPSHOT_EVERY_S = 1.0  # between two of them; in between, subscribers share one, or wait
LINGER_S = 60.0


class FeedFull(KvterraceError):
    """Another subscriber is refused: there are too many, or the node stops."""


class Source(Protocol):
    """The store."""

    def watch(self, watcher: Watcher) -> Callable[[], None]: ...


@dataclass(slots=True)
class FeedCounts:
    """Since the start."""

    batches: int = 0
    events: Counter[str] = field(default_factory=Counter[str])  # by kind
    snapshots: Counter[str] = field(default_factory=Counter[str])  # that subscribers got, by why
    sent_batches: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """See the module's constants."""

    batch_s: float = BATCH_S
    ring_batches: int = RING_BATCHES
    ring_bytes: int = RING_BYTES
    max_subscribers: int = MAX_SUBSCRIBERS
    snapshot_every_s: float = SNAPSHOT_EVERY_S
    linger_s: float = LINGER_S


class Feed:
    """epoch: tells this start of the node from any other. wall: Unix time, of the batches."""

    def __init__(
        self,
        source: Source,
        hbm: Hbm,
        *,
        node: str,
        epoch: bytes,
        limits: Limits | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self.epoch = epoch
        self.counts = FeedCounts()
        self._source = source
        self._hbm = hbm
        self._limits = limits or Limits()
        self._wall = wall
        self._writer = Writer(self._wrote)
        self._ring: deque[Batch] = deque()
        self._ring_bytes = 0
        self._next = 1  # the sequence of the batch to come
        self._subscriptions: set[Subscription] = set()
        self._unwatch: list[Callable[[], None]] = []
        self._sealing: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._snapshot: Snapshot | None = None
        self._closed = False

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    @property
    def sequence(self) -> int:
        """Of the last batch."""
        return self._next - 1

    @property
    def watching(self) -> bool:
        return bool(self._unwatch)

    @property
    def ring_bytes(self) -> int:
        return self._ring_bytes

    def subscribe(self, epoch: bytes = b"", sequence: int = 0) -> "Subscription":
        """From that sequence of that epoch on, if it is still to be had. FeedFull."""
        if self._closed:
            raise FeedFull("this node stops")
        if len(self._subscriptions) >= self._limits.max_subscribers:
            self.counts.refused += 1
            raise FeedFull(f"{len(self._subscriptions)} subscribers are served already")
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        self._begin()
        why = "" if sequence else "new"
        if not why and epoch != self.epoch:
            why = "epoch"
        subscription = Subscription(self, sequence, why)
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """End all subscriptions, and watch no longer."""
        self._closed = True
        for subscription in list(self._subscriptions):
            subscription.close()
        if self._leaving is not None:
            self._leaving.cancel()
        self._end()

    def batch(self, sequence: int) -> Batch | None:
        """One that is still in the ring."""
        at = sequence - self._first
        return self._ring[at] if 0 <= at < len(self._ring) else None

    def reaches(self, sequence: int) -> bool:
        """Whether all from there on are in the ring, or still to come."""
        return self._first <= sequence <= self._next

    async def snapshot(self, sequence: int = 0) -> "Snapshot":
        """Everything there is, as of a sequence from which the ring goes on, that one or a later one."""
        loop = asyncio.get_running_loop()
        while (last := self._snapshot) is not None:
            left_s = last.taken_s + self._limits.snapshot_every_s - loop.time()
            if left_s <= 0:
                break
            if last.sequence >= sequence and self.reaches(last.sequence + 1):
                return last
            await asyncio.sleep(left_s)
        self._seal()
        writer = Writer()
        self._source.watch(writer)()
        self._hbm.tell_all(writer)
        return self._take_snapshot(writer.take())

    def left(self, subscription: "Subscription") -> None:
        """It is over."""
        self._subscriptions.discard(subscription)
        if not self._subscriptions and self.watching and not self._closed:
            self._leaving = asyncio.get_running_loop().call_later(self._limits.linger_s, self._end)

    @property
    def _first(self) -> int:
        return self._next - len(self._ring)

    def _take_snapshot(self, events: tuple[Event, ...]) -> "Snapshot":
        loop = asyncio.get_running_loop()
        self._snapshot = Snapshot(self.sequence, loop.time(), self._wall(), events)
        loop.call_later(self._limits.snapshot_every_s, self._forget, self._snapshot)
        return self._snapshot

    def _forget(self, snapshot: "Snapshot") -> None:
        if self._snapshot is snapshot:
            self._snapshot = None

    def _begin(self) -> None:
        if self.watching:
            return
        self._next += 1  # what happened meanwhile is in no batch: nobody may go on over it
        ends = [self._source.watch(self._writer), self._hbm.watch(self._writer)]
        self._take_snapshot(self._writer.take())
        self._unwatch = ends

    def _end(self) -> None:
        self._leaving = None
        for end in self._unwatch:
            end()
        self._unwatch = []
        if self._sealing is not None:
            self._sealing.cancel()
            self._sealing = None
        self._writer.take()
        self._ring.clear()
        self._ring_bytes = 0

    def _wrote(self) -> None:
        if not self.watching:
            return
        if self._writer.size_bytes >= BATCH_BYTES:
            self._seal()
        elif self._sealing is None:
            self._sealing = asyncio.get_running_loop().call_later(self._limits.batch_s, self._seal)

    def _seal(self) -> None:
        """What was written so far is a batch."""
        if self._sealing is not None:
            self._sealing.cancel()
            self._sealing = None
        events = self._writer.take()
        if not events:
            return
        batch = Batch(self._next, self._wall(), events)
        self._next += 1
        self._ring.append(batch)
        self._ring_bytes += batch.size_bytes
        while len(self._ring) > self._limits.ring_batches or self._ring_bytes > self._limits.ring_bytes:
            self._ring_bytes -= self._ring.popleft().size_bytes
        self.counts.batches += 1
        for event in events:
            self.counts.events[event.kind.name.lower()] += 1
        for subscription in self._subscriptions:
            subscription.wake.set()


class Snapshot:
    """Everything at a sequence, in batches of bounded size."""

    def __init__(self, sequence: int, taken_s: float, wall_s: float, events: tuple[Event, ...]) -> None:
        self.sequence = sequence
        self.taken_s = taken_s
        parts: list[list[Event]] = [[]]
        size_bytes = 0
        for event in events:
            if size_bytes + event.size_bytes > BATCH_BYTES and parts[-1]:
                parts.append([])
                size_bytes = 0
            parts[-1].append(event)
            size_bytes += event.size_bytes
        last = len(parts) - 1
        self.batches = [
            Batch(sequence, wall_s, tuple(part), reset=at == 0, snapshot=True, more=at < last)
            for at, part in enumerate(parts)
        ]


class Subscription:
    """One reader. sequence: of the batch it wants next; why: what it needs a snapshot for, "" = it goes on."""

    def __init__(self, feed: Feed, sequence: int, why: str) -> None:
        self.wake = asyncio.Event()
        self._feed = feed
        self._sequence = sequence
        self._why = why
        self._least = 0  # the oldest snapshot that will do
        self._parts: deque[Batch] = deque()
        self._closed = False

    async def next(self) -> Batch | None:
        """The next batch; waits for it. None: the feed has ended."""
        while not self._closed:
            if self._parts:
                return self._took(self._parts.popleft())
            self.wake.clear()
            if not self._why and not self._feed.reaches(self._sequence):
                self._why = "gap"
            if self._why:
                await self._begin_anew()
                continue
            batch = self._feed.batch(self._sequence)
            if batch is not None:
                self._sequence += 1
                return self._took(batch)
            await self.wake.wait()
        return None

    def restart(self) -> None:
        """Go on with a snapshot of what there is after what was read: the reader has lost its own view."""
        self._parts.clear()
        self._why = "asked"
        self._least = self._sequence - 1

    def close(self) -> None:
        """Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._parts.clear()
        self._feed.left(self)
        self.wake.set()

    async def _begin_anew(self) -> None:
        given = await self._feed.snapshot(self._least)
        self._feed.counts.snapshots[self._why] += 1
        self._parts.extend(given.batches)
        self._sequence, self._why = given.sequence + 1, ""

    def _took(self, batch: Batch) -> Batch:
        self._feed.counts.sent_batches += 1
        return batch
