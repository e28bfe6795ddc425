"""What a store with a tier below DRAM is tested with: a tier that obeys, and an engine's moves in a line each."""

import asyncio

import numpy as np
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tiers import Rejected, Stored
from kvterrace.kvstore.tiers.dram import DramTier
from kvterrace.kvstore.tiers.nvme.types import Inventory
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

B = 4
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=B, head_dim=64, dtype="float16")
SPACE = Namespace(b"weights-0", LAYOUT)
PAGE = 4096


class FakeTier(DramTier):
    """A DramTier that outlives its store, waits at `gate`, and answers what it is told to."""

    def __init__(self, blocks: int = 1000) -> None:
        super().__init__(blocks * (2 * PAGE), name="nvme")
        self.gate = asyncio.Event()
        self.gate.set()
        self.trouble = None  # an answer instead of every get
        self.refusal = None  # and of every put
        self.asked: list[bytes] = []
        self.records = {}
        self.synced = 0
        self.limit = blocks * 2 * PAGE

    async def get(self, wanted, *, deadline_s):
        self.asked += [each.key for each in wanted]
        await self.gate.wait()
        if self.trouble is not None:
            return [self.trouble for _ in wanted]
        return await super().get(wanted, deadline_s=deadline_s)

    async def put(self, records, *, deadline_s):
        await self.gate.wait()
        await self.drop([record.key for record in records if record.replace])
        if self.refusal is not None:
            return [self.refusal for _ in records]
        return [await self._put_one(record, deadline_s) for record in records]

    async def _put_one(self, record, deadline_s):
        if record.key not in self.records and (len(self.records) + 1) * 2 * PAGE > self.limit:
            return Rejected("full")
        (answer,) = await super().put([record], deadline_s=deadline_s)
        if isinstance(answer, Stored):
            self.records[record.key] = record
        return answer

    async def drop(self, keys):
        for key in keys:
            self.records.pop(key, None)
        return await super().drop(keys)

    async def clear(self, fingerprint):
        keys = [key for key, r in self.records.items() if fingerprint in (None, r.fingerprint)]
        await self.drop(keys)
        return len(keys)

    async def forget(self, fingerprint, keys):
        await self.drop(keys)

    async def flush(self, *, deadline_s):
        self.synced += 1
        return True

    def refuses(self, fingerprint):
        return ""

    def devices(self):
        return ()

    def codec(self):
        return None

    def usage(self):
        usage = super().usage()
        live = len(self.records) * 2 * PAGE
        return type(usage)(usage.capacity_bytes, usage.used_bytes, usage.blocks, live, self.limit)

    async def close(self):
        """It outlives its store."""

    def inventory(self):
        rows = list(self.records.values())
        pack = lambda keys: np.frombuffer(b"".join(key.ljust(32, b"\0") for key in keys), np.uint8).reshape(-1, 32)  # noqa: E731
        ttl = np.array([r.retention.ttl_s for r in rows])
        return [
            Inventory(
                SPACE.fingerprint(),
                "sha256",
                B,
                LAYOUT.block_bytes,
                pack([r.key for r in rows]),
                pack([r.parent for r in rows]),
                np.frombuffer(b"".join(r.tokens for r in rows), np.int32).reshape(-1, B),
                np.array([r.retention.priority for r in rows], np.uint8),
                ttl,
                np.array([r.retention.pinned for r in rows], np.bool_),
                np.where(ttl > 0, 1e12, np.inf),
                np.arange(len(rows), dtype=np.uint64),
            )
        ]


class LowerBench:
    """A store of `slots` slots over a tier; one session on it."""

    def __init__(self, slots: int, tier: FakeTier, **below) -> None:
        self.tier = tier
        inventory = tier.inventory() if tier.records else ()
        options = {"backlog_share": 1.0, "in_flight_share": 1.0} | below
        self.store = Store(Arena.anonymous(slots * PAGE), below=Below(tier, inventory, **options))
        self.session = self.store.open_session(SPACE, client="test")

    @staticmethod
    def prompt(name: int, blocks: int) -> bytes:
        return pack_tokens(np.arange(blocks * B) + name * 100_000)

    @staticmethod
    def content(tokens: bytes, ordinal: int) -> int:
        return xxhash.xxh3_64_intdigest(tokens[: (ordinal + 1) * B * 4]) % 251

    def save(self, tokens: bytes, retention=()) -> int:
        count = len(tokens) // 4 // B
        given = self.session.reserve(tokens, start=0, count=count, retention=retention)
        sums = []
        for ordinal, ref in zip(given.blocks, given.slots, strict=True):
            block = self.session.arena.block(ref.slot)[: LAYOUT.block_bytes]
            block[:] = self.content(tokens, ordinal)
            sums.append(xxhash.xxh3_64_intdigest(block))
        assert not given.lease or self.session.commit(given.lease, sums)
        return len(given.blocks)

    async def saved(self, tokens: bytes, **options) -> int:
        """Save and wait until it is written down."""
        count = self.save(tokens, **options)
        assert await self.store.flush(5.0) == 0
        return count

    async def acquire(self, tokens: bytes, deadline_s: float = 5.0, skip: int = 0):
        """Acquire, check the bytes, release."""
        got = await self.session.acquire(tokens, skip=skip, deadline_s=deadline_s)
        for ordinal, ref in enumerate(got.slots, got.first):
            block = self.session.arena.block(ref.slot)[: LAYOUT.block_bytes]
            assert (block == self.content(tokens, ordinal)).all(), "a wrong byte"
            assert xxhash.xxh3_64_intdigest(block) == ref.checksum
        self.session.release(got.lease)
        self.store.check()
        return got

    @property
    def counters(self):
        return self.store.stats().counters

    async def push_out(self, blocks: int) -> None:
        """Fill DRAM with prompts that nobody asks for again."""
        for name in range(blocks):
            await self.saved(self.prompt(9000 + name, 1))
