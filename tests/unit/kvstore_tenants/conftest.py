"""A store on anonymous memory that tenants share, and what an engine does to it, in a line each."""

import asyncio

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tenants.tenants import Limits, Tenants
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

B = 4  # tokens of a block
PAGE = 4096
SECRET = b"a secret of thirty-two bytes ...."
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=B, head_dim=64, dtype="float16")
LARGE = BlockLayout(kv_heads=1, layers=8, planes=2, block_tokens=B, head_dim=64, dtype="float16")
assert (LAYOUT.slot_bytes, LARGE.slot_bytes) == (PAGE, 2 * PAGE)


class Bench:
    """A store of `pages` pages. limits: tenant -> (quota, floor), in pages of DRAM; None = no quota."""

    def __init__(self, pages: int, limits, *, heads=(), claims=None, nvme=None, nvme_pages=0, **options):
        self.now = 0.0
        granted = {}
        for name in {**limits, **(nvme or {})}:
            (dram_quota, dram_floor), (nvme_quota, nvme_floor) = (
                limits.get(name, (None, 0)),
                (nvme or {}).get(name, (None, 0)),
            )
            granted[name] = Limits(_bytes(dram_quota), dram_floor * PAGE, _bytes(nvme_quota), nvme_floor * PAGE)
        self.tenants = Tenants(
            granted, SECRET, heads=heads, claims=claims, dram_bytes=pages * PAGE, nvme_bytes=nvme_pages * PAGE
        )
        self.store = Store(Arena.anonymous(pages * PAGE), clock=lambda: self.now, tenants=self.tenants, **options)

    def open(self, tenant: str = "", *, weights: bytes = b"weights-0", layout: BlockLayout = LAYOUT, **fields):
        namespace = Namespace(weights, layout, **fields)
        return self.store.open_session(namespace, client="test", fingerprint=namespace.fingerprint(), tenant=tenant)

    @staticmethod
    def prompt(name: int, blocks: int, extra: int = 0) -> bytes:
        """Packed tokens of a prompt that shares nothing with one of another name."""
        return pack_tokens(np.arange(blocks * B + extra) + name * 100_000)

    @staticmethod
    def content(session, tokens: bytes, ordinal: int) -> int:
        """What a block is filled with: another for each namespace."""
        return xxhash.xxh3_64_intdigest(session.namespace.weights_digest + tokens[: (ordinal + 1) * B * 4]) % 251

    def reserve(self, session, tokens: bytes, start: int = 0):
        self.now += 1
        return session.reserve(tokens, start=start, count=len(tokens) // 4 // B - start)

    def fill(self, session, tokens: bytes, given) -> list[int]:
        sums = []
        for ordinal, ref in zip(given.blocks, given.slots, strict=True):
            block = session.arena.block(ref.slot)[: session.arena.block_bytes]
            block[:] = self.content(session, tokens, ordinal)
            sums.append(xxhash.xxh3_64_intdigest(block))
        return sums

    def save(self, session, tokens: bytes, start: int = 0) -> int:
        """Store all blocks of the prompt from `start` on; how many were new."""
        given = self.reserve(session, tokens, start)
        if given.lease:
            assert session.commit(given.lease, self.fill(session, tokens, given))
        return len(given.blocks)

    def acquire(self, session, tokens: bytes, skip: int = 0):
        self.now += 1
        return asyncio.run(session.acquire(tokens, skip=skip, deadline_s=0))

    async def read(self, session, tokens: bytes, deadline_s: float = 5.0, skip: int = 0):
        """Acquire, check the bytes, release."""
        self.now += 1
        got = await session.acquire(tokens, skip=skip, deadline_s=deadline_s)
        for ordinal, ref in enumerate(got.slots, got.first):
            block = session.arena.block(ref.slot)[: session.arena.block_bytes]
            assert (block == self.content(session, tokens, ordinal)).all(), "a wrong byte"
            assert xxhash.xxh3_64_intdigest(block) == ref.checksum
        session.release(got.lease)
        return got

    def has(self, session, tokens: bytes) -> int:
        """Blocks of a prompt in DRAM."""
        return session.lookup(tokens).tiers.get("dram", 0) // B

    def pages(self, tenant: str) -> int:
        return self.tenants.named(tenant).dram.used // PAGE

    @property
    def counters(self):
        return self.store.stats().counters


def _bytes(pages):
    return None if pages is None else pages * PAGE


@pytest.fixture
def bench():
    """Call it with the number of pages, tenants' limits, and Store's options."""
    made = []

    def make(pages: int, limits, **options) -> Bench:
        made.append(Bench(pages, limits, **options))
        return made[-1]

    yield make
    for each in made:
        each.store.check()
        each.store.close()
        each.store.check()
        assert all(each.tenants.named(name).sessions == 0 for name in ("",))


@pytest.fixture
def large():
    """A layout whose slot is two pages."""
    return LARGE
