"""Tier: what a place below the arena offers, in five batched verbs. One is a batch of one.

What every tier promises (tests/unit/kvstore/test_tier_contract.py holds each of them to it):

- One answer for each item, in order, told apart by type. Trouble is an answer, never an exception, and one item's
  trouble is not its neighbour's.
- `get` answers Hit only after identity (namespace, key, parent, token ids), length and checksum held; `into` then has
  the block. After any other answer the content of `into` is undefined, and a block that is corrupt is gone from the
  tier.
- `put` answers Stored only once the block can be got. It has copied the payload, or written it, when it returns. A
  block that is there already is Stored again without a second copy, unless the record replaces it.
- Capacity is a hard cap at every moment. `usage` counts what is there, from a restart on.
- No verb waits beyond `deadline_s`; what is not done by then is answered Failed("deadline"), at once.
- A device call cannot be called back: a Failed whose `until` is set says that the tier may still write to `into` (or
  read from the payload) until that event. Whoever owns the memory keeps it until then.
- After close(), everything is a Miss or a Rejected("closed").

Which blocks leave when a tier is full is the caller's to say, by `drop`: it knows which prefixes they belong to. A tier
that has no room rejects what is put with "full", unless it says otherwise. Used from one event loop.

The arena itself is not behind this Protocol: engines lease its slots, they do not copy out of it. `get` reads straight
into such slots, `put` straight out of them; the caller holds a lease on them until it returns.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...proto import DEFAULT_RETENTION, Retention


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A block to get. fingerprint: of its namespace; key, parent: chained block keys; tokens: packed, the block's own;
    prompt: packed, from the first block of the prompt to this one or further, for tiers that find blocks by what is
    above them; ordinal: its place there.

    into: uint8, contiguous, block_bytes or more; what lies behind block_bytes may be overwritten. Memory that begins
    at a multiple of 4096 and reaches to the next one behind the block is filled without a copy.
    """

    fingerprint: bytes
    key: bytes
    parent: bytes
    tokens: bytes
    block_bytes: int
    into: NDArray[np.uint8]
    prompt: bytes = b""
    ordinal: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A block to put. payload: uint8, contiguous, block_bytes or more (what lies behind is padding, of any content);
    checksum: xxh3-64 of the block's block_bytes; hash_name: of the algorithm of its keys; itemsize: bytes of the
    payload's elements, for codecs; replace: take the place of a copy that is there, for another retention; ordinal: 0
    where it is not known. Others as in Wanted."""

    fingerprint: bytes
    key: bytes
    parent: bytes
    tokens: bytes
    block_bytes: int
    payload: NDArray[np.uint8]
    checksum: int
    hash_name: str = "sha256"
    retention: Retention = DEFAULT_RETENTION
    itemsize: int = 1
    replace: bool = False
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """The block is in `into`; checksum: its xxh3-64, which held."""

    checksum: int


@dataclass(frozen=True, slots=True)
class Miss:
    """The tier does not have the block."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The tier has, or had, the block and could not give or take it: "corrupt", "deadline", "io", "breaker" (the device
    is out of use for now). until: see the module; None = the memory is free now."""

    reason: str
    until: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """The block can be got from now on."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not taken, on purpose: "disabled", "too_large", "corrupt" (payload and checksum do not fit), "full", "budget" (of
    writes, for today), "quota" (of the tenant; said by the store), "busy" (too much is being written), "no_key" (of the
    tenant, where blocks are encrypted), "no_tenant" (whose key it would be is not known now), "closed"."""

    reason: str


Got: TypeAlias = Hit | Miss | Failed
Put: TypeAlias = Stored | Rejected | Failed


@dataclass(frozen=True, slots=True)
class Usage:
    """capacity_bytes: hard cap; used_bytes: taken now, headers included; blocks: that can be got.

    live_bytes: of the blocks that can be got, headers included. live_limit_bytes: what is put beyond it is rejected as
    "full", so whoever puts drops first; below it the tier finds room by itself. 0 = the tier has no such limit.
    """

    capacity_bytes: int
    used_bytes: int
    blocks: int
    live_bytes: int = 0
    live_limit_bytes: int = 0


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


def hit_bytes(wanted: Sequence[Wanted], answers: Sequence[Got]) -> int:
    """Payload bytes that came."""
    return sum(each.block_bytes for each, answer in zip(wanted, answers, strict=True) if isinstance(answer, Hit))
