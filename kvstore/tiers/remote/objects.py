"""Objects: what a store of last resort offers: whole blocks under names, written at once or not at all.

A name is made of hex digits of fingerprint and key, so that nothing that came in a message is ever a path.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..base import Usage

FINGERPRINT_BYTES = 32
KEY_BYTES = (16, 32)  # xxh3-128, sha256
DEPTH_S = 0.1  # a block counts as used so much later than the one below it, so that tails leave before their heads;
# more than writing one takes, since tails are written last


class Name(NamedTuple):
    """Of one block. ordinal: its place in the prompt."""

    fingerprint: bytes
    key: bytes
    ordinal: int = 0

    @property
    def valid(self) -> bool:
        """Whether it can name a block at all."""
        return len(self.fingerprint) == FINGERPRINT_BYTES and len(self.key) in KEY_BYTES

    @property
    def text(self) -> str:
        """Two levels of folders: namespace, first byte of the key; then the key."""
        key = self.key.hex()
        return f"{self.fingerprint.hex()}/{key[:2]}/{key}"

    @property
    def depth_s(self) -> float:
        """What its last use is put back by."""
        return self.ordinal * DEPTH_S


@dataclass(frozen=True, slots=True)
class Found:
    """size_bytes: of the whole object, whatever was asked for; checksum: xxh3-64 of what came into `payload`."""

    size_bytes: int
    checksum: int


class Trouble(Exception):
    """It did not work: "deadline", "unreachable", "denied" (rights, a password, a file system that is read-only),
    "no_space", "full" (at our own cap), "too_large", "corrupt" (payload and checksum do not fit) or "io". sure: it will
    not work the next time either. until: as in Failed."""

    def __init__(self, reason: str, message: str, *, sure: bool = False, until: asyncio.Event | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.sure = sure
        self.until = until


class Objects(Protocol):
    """Verbs raise Trouble, and end by `by`, of the loop's clock, at the latest. `read`, `write` and `exists` count as a
    use of the object, where the store can note that."""

    @property
    def width(self) -> int:
        """Questions that are best asked at once."""
        ...

    @property
    def text(self) -> str:
        """Where it is, for people; without passwords."""
        ...

    async def read(self, name: Name, head: memoryview, payload: memoryview, *, by: float) -> Found | None:
        """Fill `head`, then `payload`, as far as the object reaches; None: it is not there."""
        ...

    async def write(
        self, name: Name, head: bytes, payload: memoryview, checksum: int, *, replace: bool, by: float
    ) -> bool:
        """Store both as one object, unless it is there already and is not to be replaced. False: it was there."""
        ...

    async def exists(self, names: Sequence[Name], *, by: float) -> list[bool]: ...

    async def remove(self, name: Name, *, by: float) -> bool:
        """False: it was not there."""
        ...

    async def clear(self, fingerprint: bytes, *, by: float) -> int:
        """Remove all of a namespace; how many objects."""
        ...

    async def count(self, *, by: float) -> None:
        """Take stock: what others wrote and removed, what is left over from writers that died; make room."""
        ...

    def usage(self) -> Usage:
        """As far as it is known here. capacity_bytes: 0 = bounded by nobody here."""
        ...

    @property
    def evicted(self) -> int:
        """Objects that this process removed to make room."""
        ...

    async def close(self) -> None: ...
