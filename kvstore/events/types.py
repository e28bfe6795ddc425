"""What subscribers are told: events, and the batches that are numbered."""

from dataclasses import dataclass
from enum import IntEnum

from .hbm import Engine

NOBODY = Engine()


class Kind(IntEnum):
    """As in the wire contract."""

    STORED = 1
    REMOVED = 2
    CLEARED = 3


@dataclass(slots=True)
class Event:
    """keys: `count` of them, joined. parent, first, tokens: of what was stored. Not changed once its batch is sealed.
    engine: tier "hbm" only."""

    kind: Kind
    tier: str
    fingerprint: bytes
    keys: bytes = b""
    count: int = 0
    first: int = 0
    parent: bytes = b""
    tokens: bytes = b""
    engine: Engine = NOBODY

    @property
    def size_bytes(self) -> int:
        return len(self.keys) + len(self.tokens) + 100

    def split(self) -> list[bytes]:
        """The keys."""
        size = len(self.keys) // self.count if self.count else 1
        return [self.keys[at : at + size] for at in range(0, len(self.keys), size)]


@dataclass(frozen=True, slots=True)
class Batch:
    """reset: forget everything, a snapshot begins; snapshot: part of one; more: it goes on."""

    sequence: int
    timestamp_s: float
    events: tuple[Event, ...]
    reset: bool = False
    snapshot: bool = False
    more: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(event.size_bytes for event in self.events)
