"""DramTier: whole records in plain memory, least recently used first out. The reference beside the real tiers.

It keeps what they keep (identity, checksum, payload) and checks what they check, without files or sockets.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from .base import Failed, Got, Hit, Miss, Put, Record, Rejected, Stored, Usage, Wanted

RECORD_BYTES = 256  # counted for each block beside its payload and tokens


@dataclass(slots=True, eq=False)
class _Kept:
    fingerprint: bytes
    parent: bytes
    tokens: bytes
    checksum: int
    payload: NDArray[np.uint8]

    @property
    def size(self) -> int:
        return RECORD_BYTES + len(self.tokens) + self.payload.nbytes


class DramTier:
    """capacity_bytes bounds payloads, tokens and RECORD_BYTES a block. Full, it lets go of the least recently used."""

    def __init__(self, capacity_bytes: int, *, name: str = "dram") -> None:
        self.name = name
        self._capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # least recently used first
        self._closed = False

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        return [self._get(each) for each in wanted]

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        return [self._put(each) for each in records]

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._drop(key) for key in keys]

    def usage(self) -> Usage:
        return Usage(self._capacity_bytes, self._used_bytes, len(self._kept), live_bytes=self._used_bytes)

    async def close(self) -> None:
        self._closed = True
        self._kept.clear()
        self._used_bytes = 0

    def _get(self, wanted: Wanted) -> Got:
        kept = self._kept.get(wanted.key)
        if kept is None:
            return Miss()
        asked = (wanted.fingerprint, wanted.parent, wanted.tokens, wanted.block_bytes)
        if asked != (kept.fingerprint, kept.parent, kept.tokens, kept.payload.nbytes):
            return Miss()  # the question is wrong, not the record
        into = wanted.into[: wanted.block_bytes]
        into[:] = kept.payload
        if xxhash.xxh3_64_intdigest(into.data) != kept.checksum:
            self._drop(wanted.key)
            return Failed("corrupt")
        self._kept.move_to_end(wanted.key)
        return Hit(kept.checksum)

    def _put(self, record: Record) -> Put:
        if self._closed:
            return Rejected("closed")
        if record.key in self._kept:
            return Stored()
        payload = record.payload[: record.block_bytes].copy()
        kept = _Kept(record.fingerprint, record.parent, record.tokens, record.checksum, payload)
        if kept.size > self._capacity_bytes:
            return Rejected("too_large")
        if xxhash.xxh3_64_intdigest(kept.payload.data) != record.checksum:
            return Rejected("corrupt")
        while self._used_bytes + kept.size > self._capacity_bytes:
            self._drop(next(iter(self._kept)))
        self._kept[record.key] = kept
        self._used_bytes += kept.size
        return Stored()

    def _drop(self, key: bytes) -> bool:
        kept = self._kept.pop(key, None)
        if kept is None:
            return False
        self._used_bytes -= kept.size
        return True
