"""NullConnector: the engine without a store. Owns nothing but its queue of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..proto import RetentionRange
from .base import ConnectorStatus, Event, HbmChange, LoadDone, Lookup, Offer, Origin, Receipt, SaveDone

REASON = "disabled"


class NullConnector:
    """A KVConnector that never has anything: answers come at the next poll(), without any wait."""

    def __init__(self, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._events: list[Event] = []

    def fetch(
        self, request_id: str, tokens: bytes, hbm_blocks: int, max_blocks: int, origin: Origin | None = None
    ) -> None:
        self._push(Offer(request_id, 0, {}, REASON))

    def load(self, request_id: str, pages: Sequence[int]) -> None:
        self._push(LoadDone(request_id, 0, {}, REASON))

    def decline(self, request_id: str) -> None:
        return

    def save(
        self,
        request_id: str,
        tokens: bytes,
        start: int,
        pages: Sequence[int],
        retention: Sequence[RetentionRange] = (),
    ) -> None:
        self._push(SaveDone(request_id, start, len(pages), 0))

    def cancel(self, request_id: str) -> None:
        self._events = [e for e in self._events if not (isinstance(e, Offer) and e.request_id == request_id)]

    def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        return

    def prefetch(self, request_id: str, tokens: bytes, hbm_blocks: int) -> bool:
        return False

    def observe(self, first: int, tokens: int, seconds: float) -> None:
        return

    def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> bool:
        return True

    def served(self, receipt: Receipt) -> None:
        return

    def lookup(self, tokens: bytes, timeout_s: float) -> Lookup | None:
        return None

    def poll(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def status(self) -> ConnectorStatus:
        return ConnectorStatus(kind="none", connected=False)

    def close(self) -> None:
        return

    def _push(self, event: Event) -> None:
        self._events.append(event)
        self._on_event()
