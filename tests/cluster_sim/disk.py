"""A lower tier in memory, with the delays of a disk: it outlives its store's process."""

import asyncio
import random
from collections.abc import Sequence

import numpy as np
import xxhash
from kvterrace.kvstore.tiers import Failed, Got, Hit, Miss, Put, Record, Rejected, Stored, Usage, Wanted
from kvterrace.kvstore.tiers.nvme.types import Inventory

RECORD_BYTES = 8192


class Disk:
    """A LowerTier of `blocks` records."""

    name = "nvme"

    def __init__(self, rng: random.Random, blocks: int) -> None:
        self._rng, self._limit = rng, blocks
        self._records: dict[bytes, tuple[Record, bytes]] = {}

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        await self._turn()
        return [self._get(each) for each in wanted]

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        copies = [each.payload[: each.block_bytes].tobytes() for each in records]
        await self._turn()
        return [self._put(each, data) for each, data in zip(records, copies, strict=True)]

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._records.pop(key, None) is not None for key in keys]

    async def clear(self, fingerprint: bytes | None) -> int:
        keys = [key for key, (each, _) in self._records.items() if fingerprint in (None, each.fingerprint)]
        return sum(await self.drop(keys))

    async def flush(self, *, deadline_s: float) -> bool:
        return True

    def usage(self) -> Usage:
        used, limit = len(self._records) * RECORD_BYTES, self._limit * RECORD_BYTES
        return Usage(2 * limit, used, len(self._records), used, limit)

    def refuses(self, fingerprint: bytes) -> str:
        return ""

    def devices(self) -> tuple[()]:
        return ()

    def codec(self) -> None:
        return None

    async def close(self) -> None:
        pass

    def inventory(self) -> list[Inventory]:
        """What a store finds at its start."""
        groups: dict[tuple[bytes, str, int], list[Record]] = {}
        for each, _ in self._records.values():
            groups.setdefault((each.fingerprint, each.hash_name, each.block_bytes), []).append(each)
        return [self._group(*key, rows) for key, rows in groups.items()]

    @staticmethod
    def _group(fingerprint: bytes, hash_name: str, block_bytes: int, rows: list[Record]) -> Inventory:
        def packed(keys: list[bytes]) -> np.ndarray:
            return np.frombuffer(b"".join(key.ljust(32, b"\0") for key in keys), np.uint8).reshape(-1, 32)

        tokens = len(rows[0].tokens) // 4
        return Inventory(
            fingerprint,
            hash_name,
            tokens,
            block_bytes,
            packed([each.key for each in rows]),
            packed([each.parent for each in rows]),
            np.frombuffer(b"".join(each.tokens for each in rows), np.int32).reshape(-1, tokens),
            np.array([each.retention.priority for each in rows], np.uint8),
            np.zeros(len(rows)),
            np.zeros(len(rows), np.bool_),
            np.full(len(rows), np.inf),
            np.arange(len(rows), dtype=np.uint64),
        )

    async def _turn(self) -> None:
        slow = self._rng.random() < 0.02
        await asyncio.sleep(self._rng.uniform(0.2, 2.0) if slow else self._rng.uniform(0.0001, 0.005))

    def _get(self, each: Wanted) -> Got:
        found = self._records.get(each.key)
        if found is None:
            return Miss()
        record, data = found
        if (record.fingerprint, record.parent, record.tokens) != (each.fingerprint, each.parent, each.tokens):
            return Failed("corrupt")
        each.into[: each.block_bytes] = np.frombuffer(data, np.uint8)
        return Hit(record.checksum)

    def _put(self, record: Record, data: bytes) -> Put:
        if record.key not in self._records and len(self._records) >= self._limit:
            return Rejected("full")
        if xxhash.xxh3_64_intdigest(data) != record.checksum:
            return Rejected("corrupt")
        self._records[record.key] = (record, data)
        return Stored()
