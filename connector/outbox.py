"""Outbox: the events on their way to the engine, and the counters behind ConnectorStatus.

Any thread pushes, the engine's thread takes. The counters move with the event that reports the same fact, so that
what status() says never runs ahead of what poll() has delivered or will deliver.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from .base import ConnectorStatus, Delayed, Event, LoadDone, Offer, SaveDone

# Reasons of an Offer that say "trouble"; the others are the store's, about what it does not have, or finds not worth
# loading. A load falls short by trouble only.
TROUBLE = frozenset({"deadline", "disconnected", "busy", "error", "self_test", "io", "breaker"})


class Outbox:
    """Thread-safe queue of events with its counters; the pusher calls wake() afterwards."""

    def __init__(self, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._totals: Counter[str] = Counter()
        self._load_seconds = 0.0
        self._misses: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def offer(self, event: Offer) -> None:
        with self._lock:
            self._totals["fetches"] += 1
            if event.reason:
                (self._failures if event.reason in TROUBLE else self._misses)[event.reason] += 1
            self._events.append(event)

    def load_done(self, event: LoadDone, *, loaded_bytes: int, seconds: float, corrupt_blocks: int) -> None:
        with self._lock:
            self._totals["loads"] += 1
            self._totals["loaded_blocks"] += event.blocks_ok
            self._totals["loaded_bytes"] += loaded_bytes
            self._totals["corrupt_blocks"] += corrupt_blocks
            self._load_seconds += seconds
            if event.reason:
                self._failures[event.reason] += 1
            self._events.append(event)

    def save_done(self, event: SaveDone, *, saved_bytes: int, dropped: int, reason: str) -> None:
        with self._lock:
            self._totals["saves"] += 1
            self._totals["saved_blocks"] += event.saved
            self._totals["saved_bytes"] += saved_bytes
            if dropped:
                self._dropped[reason] += dropped
            self._events.append(event)

    def delayed(self, event: Delayed) -> None:
        with self._lock:
            self._events.append(event)

    def drop_offers(self, request_id: str) -> None:
        """Withdraw the undelivered offers of one request. O(events not yet polled)."""
        kinds = (Offer, Delayed)
        with self._lock:
            self._events = [e for e in self._events if not (isinstance(e, kinds) and e.request_id == request_id)]

    def wake(self) -> None:
        """Tell the engine; apart from the pushes, so that no caller holds a lock of its own meanwhile."""
        self._on_event()

    def take(self) -> list[Event]:
        with self._lock:
            events, self._events = self._events, []
        return events

    def count(self, name: str) -> None:
        """One more of what has no event: "prefetches", "receipts", "dropped_receipts"."""
        with self._lock:
            self._totals[name] += 1

    def status(
        self, *, kind: str, connected: bool, fetches: int, loads: int, save_bytes: int, prefetches: int
    ) -> ConnectorStatus:
        """The counters, with the gauges that their owners hand in."""
        with self._lock:
            return ConnectorStatus(
                kind=kind,
                connected=connected,
                fetches=self._totals["fetches"],
                loads=self._totals["loads"],
                loaded_blocks=self._totals["loaded_blocks"],
                loaded_bytes=self._totals["loaded_bytes"],
                load_seconds=self._load_seconds,
                saves=self._totals["saves"],
                saved_blocks=self._totals["saved_blocks"],
                saved_bytes=self._totals["saved_bytes"],
                corrupt_blocks=self._totals["corrupt_blocks"],
                prefetches=self._totals["prefetches"],
                receipts=self._totals["receipts"],
                dropped_receipts=self._totals["dropped_receipts"],
                misses=dict(self._misses),
                failures=dict(self._failures),
                dropped_saves=dict(self._dropped),
                fetches_in_flight=fetches,
                loads_in_flight=loads,
                save_bytes_in_flight=save_bytes,
                prefetches_in_flight=prefetches,
            )
