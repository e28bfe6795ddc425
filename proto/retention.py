"""Retention: how long a block is worth keeping. Set by a request or an operator; travels with the block through every
tier, peer and restart."""

import math
from dataclasses import dataclass

from .layout import FieldError

DEFAULT_PRIORITY = 50
MAX_PRIORITY = 100
MAX_TTL_S = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Retention:
    """Advice, never a promise: a store full of pins still serves. FieldError names the field that is wrong.

    priority: 0 (first to leave) to 100; 50 is everyone's.
    ttl_s:    leaves first once not used for so many seconds; 0 = no such limit.
    pinned:   leaves last, within the store's budget for pins.
    """

    priority: int = DEFAULT_PRIORITY
    ttl_s: float = 0.0
    pinned: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not 0 <= self.priority <= MAX_PRIORITY:
            raise FieldError("priority", f"must be between 0 and {MAX_PRIORITY}, not {self.priority!r}")
        if not (math.isfinite(self.ttl_s) and 0 <= self.ttl_s <= MAX_TTL_S):
            raise FieldError("ttl_s", f"must be between 0 (none) and {MAX_TTL_S:.0f} seconds, not {self.ttl_s!r}")


DEFAULT_RETENTION = Retention()


@dataclass(frozen=True, slots=True)
class RetentionRange:
    """Retention of blocks start .. end-1 of a prompt, by ordinal."""

    start: int
    end: int
    retention: Retention

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise FieldError("retention", f"blocks {self.start} to {self.end} are no range")
