"""Flight: a few consecutive blocks of one prompt on their way into arena slots."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from .lease import WriteLease
from .residents import Residents
from .source import Source
from .tiers import Got
from .tracing import Span, current


class Stage(Enum):
    QUEUED = "queued"
    READING = "reading"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Pin:
    """A read lease on what has landed, until none of `flights` flights is waited for any more."""

    lease: int
    flights: int


@dataclass(slots=True, eq=False)
class Flight:
    """lease: on the slots to fill; first: ordinal of its first block; keys: of its blocks.
    previous: brings the blocks right above, None when these are in DRAM.
    followers: bring blocks right below; several where prompts part. expects_more: one is about to be launched.
    waiting: who would be sorry if it did not come. goal_of: how many of them wait for no flight behind it.
    urgent: a request waits for it now.
    answers: what the tier has said.
    pin: while someone waits, once it has landed.
    reason: why it fell short, once ended; "" = all landed.
    span: what it was launched for.
    """

    space: Residents
    source: Source
    lease: WriteLease
    first: int
    keys: list[bytes]
    previous: "Flight | None"
    followers: "list[Flight]" = field(default_factory=list["Flight"])
    stage: Stage = Stage.QUEUED
    expects_more: bool = False
    waiting: int = 0
    goal_of: int = 0
    urgent: bool = False
    answers: Sequence[Got] | None = None
    pin: Pin | None = None
    reason: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    span: Span = field(default_factory=current)
