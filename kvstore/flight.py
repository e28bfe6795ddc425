"""Flight: a few consecutive blocks of one prompt on their way from a lower tier into arena slots."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from ..radix import Retentions
from .catalog import Catalog
from .lease import WriteLease
from .residents import Residents


class Stage(Enum):
    QUEUED = "queued"
    READING = "reading"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class Flight:
    """lease: on the slots to fill. blocks: the catalog's numbers when it was launched; they may have gone since.
    previous: brings the blocks right above, None when these are in DRAM. waiting: who would be sorry if it did not
    come. urgent: a request waits for it now. pin: the read lease on what has landed, while someone waits; 0 = none.
    reason: why it fell short, once ended; "" = all landed.
    """

    space: Residents
    catalog: Catalog
    lease: WriteLease
    blocks: NDArray[np.int32]
    keys: list[bytes]
    above_key: bytes
    retentions: Retentions
    previous: "Flight | None"
    stage: Stage = Stage.QUEUED
    waiting: int = 0
    urgent: bool = False
    pin: int = 0
    reason: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first(self) -> int:
        return self.lease.first
