"""Shared: what a store lends to all its sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..radix import Match
from .bringing import Bringer
from .demoter import Demoter
from .depot import Depot
from .events.hbm import Hbm
from .insight import Insight
from .promoter import Promoter
from .residents import Residents
from .room import Room
from .stats import Counters
from .tracing import OFF, Tracer
from .why import Why

if TYPE_CHECKING:
    from .session import Session

Tap = Callable[[bytes, bytes, int], None]
"""Told of each acquire: fingerprint, packed tokens, tokens of a block."""
Offer = Callable[[Residents, bytes, Match], None]
"""Told of blocks that were committed or read."""


@dataclass(slots=True)
class Backlog:
    """Slots reserved and not committed: all sessions' together, and the limits on that and on one session's."""

    limit_slots: int
    session_limit_slots: int
    reserved: int = 0
    draining: bool = False  # nothing new is taken


@dataclass(frozen=True, slots=True)
class Shared:
    """See the module."""

    room: Room
    depot: Depot
    promoter: Promoter
    demoter: Demoter
    bringer: Bringer
    backlog: Backlog
    counters: Counters
    why: Why
    lease_ids: Iterator[int]
    max_leases: int  # of one session
    on_close: Callable[[Session], None]
    hbm: Hbm = field(default_factory=Hbm)
    insight: Insight = field(default_factory=Insight)
    tracer: Tracer = OFF
    taps: list[Tap] = field(default_factory=list[Tap])
    offers: list[Offer] = field(default_factory=list[Offer])
