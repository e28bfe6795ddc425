"""Writer: collects what watchers are told into events, joined where they go on and cut where they grow too large."""

from collections.abc import Callable, Sequence

from .hbm import TIER, Engine
from .types import NOBODY, Event, Kind

MAX_EVENT_BLOCKS = 2048
MAX_EVENT_BYTES = 1 << 20


class Writer:
    """A Watcher and an HbmWatcher. on_event: called after each event that was added or grew."""

    def __init__(self, on_event: Callable[[], None] | None = None) -> None:
        self.events: list[Event] = []
        self.size_bytes = 0
        self._on_event = on_event

    def take(self) -> tuple[Event, ...]:
        """What was collected; begins anew."""
        events, self.events, self.size_bytes = tuple(self.events), [], 0
        return events

    def stored(
        self, tier: str, fingerprint: bytes, first: int, keys: Sequence[bytes], parent: bytes, tokens: bytes
    ) -> None:
        self._stored(tier, NOBODY, fingerprint, first, keys, parent, tokens)

    def removed(self, tier: str, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        self._removed(tier, NOBODY, fingerprint, keys)

    def cleared(self, tier: str, fingerprint: bytes) -> None:
        # What was said before of the same blocks means nothing any more.
        kept = [each for each in self.events if (each.tier, each.fingerprint) != (tier, fingerprint)]
        self.size_bytes -= sum(each.size_bytes for each in self.events) - sum(each.size_bytes for each in kept)
        self.events = kept
        self._add(Event(Kind.CLEARED, tier, fingerprint))

    def hbm_stored(
        self, engine: Engine, fingerprint: bytes, first: int, keys: Sequence[bytes], parent: bytes, tokens: bytes
    ) -> None:
        self._stored(TIER, engine, fingerprint, first, keys, parent, tokens)

    def hbm_removed(self, engine: Engine, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        self._removed(TIER, engine, fingerprint, keys)

    def _stored(
        self,
        tier: str,
        engine: Engine,
        fingerprint: bytes,
        first: int,
        keys: Sequence[bytes],
        parent: bytes,
        tokens: bytes,
    ) -> None:
        if not keys:
            return
        size = len(tokens) // len(keys)
        most = max(1, min(MAX_EVENT_BLOCKS, MAX_EVENT_BYTES // max(size, 1)))
        for at in range(0, len(keys), most):
            some, own = keys[at : at + most], tokens[at * size : (at + most) * size]
            above = keys[at - 1] if at else parent
            last = self._last(Kind.STORED, tier, engine, fingerprint)
            if last is not None and last.keys.endswith(above) and last.count + len(some) <= most:
                last.keys += b"".join(some)
                last.tokens += own
                last.count += len(some)
                self._grew(len(some) * len(above) + len(own))
            else:
                joined = b"".join(some)
                self._add(Event(Kind.STORED, tier, fingerprint, joined, len(some), first + at, above, own, engine))

    def _removed(self, tier: str, engine: Engine, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        for at in range(0, len(keys), MAX_EVENT_BLOCKS):
            some = keys[at : at + MAX_EVENT_BLOCKS]
            joined = b"".join(some)
            last = self._last(Kind.REMOVED, tier, engine, fingerprint)
            if last is not None and last.count + len(some) <= MAX_EVENT_BLOCKS:
                last.keys += joined
                last.count += len(some)
                self._grew(len(joined))
            else:
                self._add(Event(Kind.REMOVED, tier, fingerprint, joined, len(some), engine=engine))

    def _last(self, kind: Kind, tier: str, engine: Engine, fingerprint: bytes) -> Event | None:
        """The latest event, if it is of that kind and place."""
        if not self.events:
            return None
        last = self.events[-1]
        same = (last.kind, last.tier, last.engine, last.fingerprint) == (kind, tier, engine, fingerprint)
        return last if same else None

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self._grew(event.size_bytes)

    def _grew(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        if self._on_event is not None:
            self._on_event()
