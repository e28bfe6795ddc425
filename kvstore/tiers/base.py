"""Tier: what a place below the arena offers, in five batched verbs. One is a batch of one.

What every tier promises (tests/unit/kvstore/test_tier_contract.py holds each of them to it):

- One answer for each item, in order, told apart by type. Trouble is an answer, never an exception, and one item's
  trouble is not its neighbour's.
- `get` answers Hit only after identity (key, parent, token ids), length and checksum held; `into` then has the block.
  After any other answer the content of `into` is undefined, and a block that failed is gone from the tier.
- `put` answers Stored only once the block can be got. It has copied the payload, or written it, when it returns. A
  block that is there already is Stored again without a second copy.
- Capacity is a hard cap at every moment. `usage` counts what is there, from a restart on.
- No verb waits beyond `deadline_s`; what is not done by then is answered Failed("deadline").
- After close(), everything is a Miss or a Rejected("closed").

Used from one event loop. The arena itself is not behind this Protocol: engines lease its slots, they do not copy out of
it. `get` reads straight into such slots, `put` straight out of them; the caller holds a lease on them until it returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A block to get. key, parent: chained block keys; tokens: packed, the block's own; into: uint8 [block_bytes]."""

    key: bytes
    parent: bytes
    tokens: bytes
    into: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A block to put. payload: uint8 [block_bytes]; checksum: its xxh3-64. Others as in Wanted."""

    key: bytes
    parent: bytes
    tokens: bytes
    payload: NDArray[np.uint8]
    checksum: int


@dataclass(frozen=True, slots=True)
class Hit:
    """The block is in `into`; checksum: its xxh3-64, which held."""

    checksum: int


@dataclass(frozen=True, slots=True)
class Miss:
    """The tier does not have the block."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The tier has, or had, the block and could not give or take it: "corrupt", "deadline", "io"."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The block can be got from now on."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not taken, on purpose: "disabled", "too_large", "corrupt" (payload and checksum do not fit), "closed"."""

    reason: str


Got: TypeAlias = Hit | Miss | Failed
Put: TypeAlias = Stored | Rejected | Failed


@dataclass(frozen=True, slots=True)
class Usage:
    """capacity_bytes: hard cap; used_bytes: taken now, headers included; blocks: that can be got."""

    capacity_bytes: int
    used_bytes: int
    blocks: int


class Tier(Protocol):
    """See the module."""

    name: str

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]: ...

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]: ...

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        """True for each block that was there."""
        ...

    def usage(self) -> Usage: ...

    async def close(self) -> None:
        """Finish or give up what is in hand. Closing twice is harmless."""
        ...
