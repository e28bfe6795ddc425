"""A store on anonymous memory with a clock of its own, and what an engine does to it, in a line each."""

import asyncio
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.store import Store
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

BLOCK_TOKENS = 4
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=BLOCK_TOKENS, head_dim=64, dtype="float16")
LARGE = BlockLayout(kv_heads=1, layers=8, planes=2, block_tokens=BLOCK_TOKENS, head_dim=64, dtype="float16")
assert (LAYOUT.slot_bytes, LARGE.slot_bytes) == (4096, 8192)


class Bench:
    """A store of `pages` pages, and shorthands. `now` is its clock."""

    def __init__(self, pages: int, **options):
        self.now = 0.0
        self.store = Store(Arena.anonymous(pages * 4096), clock=lambda: self.now, **options)

    def open(self, *, weights: bytes = b"weights-0", layout: BlockLayout = LAYOUT, **fields):
        return self.store.open_session(Namespace(weights, layout, **fields), client="test")

    @staticmethod
    def prompt(name: int, blocks: int) -> bytes:
        """Packed tokens of a prompt that shares nothing with one of another name."""
        return pack_tokens(np.arange(blocks * BLOCK_TOKENS) + name * 100_000)

    @staticmethod
    def fill(session, reserved) -> list[int]:
        """Write something of its own into each slot; the checksums."""
        sums = []
        for ordinal, ref in zip(reserved.blocks, reserved.slots, strict=True):
            block = session.arena.block(ref.slot)[: session.arena.block_bytes]
            block[:] = (reserved.lease * 31 + ordinal) % 251
            sums.append(xxhash.xxh3_64_intdigest(block))
        return sums

    def save(self, session, tokens: bytes, start: int = 0) -> int:
        """Store all blocks of the prompt from `start` on; how many were new."""
        count = len(tokens) // 4 // BLOCK_TOKENS - start
        reserved = session.reserve(tokens, start=start, count=count)
        if reserved.lease:
            assert session.commit(reserved.lease, self.fill(session, reserved))
        return len(reserved.blocks)

    @staticmethod
    def acquire(session, tokens: bytes, skip: int = 0):
        return asyncio.run(session.acquire(tokens, skip=skip, deadline_s=0))

    @property
    def dram(self):
        return self.store.stats().tiers[0]

    @property
    def counters(self):
        return self.store.stats().counters


@pytest.fixture
def bench():
    """Call it with the number of pages and Store's options."""
    made = []

    def make(pages: int, **options) -> Bench:
        made.append(Bench(pages, **options))
        return made[-1]

    yield make
    for each in made:
        each.store.check()
        each.store.close()


@pytest.fixture
def layouts():
    """(slot of 4096 bytes, slot of 8192 bytes), otherwise alike."""
    return LAYOUT, LARGE


def _load(name: str):
    """A helper module beside this file: tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOWER = _load("lower_bench")


@pytest.fixture
def fake_tier():
    """The class."""
    return LOWER.FakeTier


@pytest.fixture
async def lower():
    """Call it with the number of slots, a FakeTier and Below's options."""
    made = []

    def make(slots: int, tier=None, **below):
        made.append(LOWER.LowerBench(slots, tier or LOWER.FakeTier(), **below))
        return made[-1]

    yield make
    for each in made:
        each.tier.gate.set()
        await each.store._promoter.settled()
        each.store.check()
        await each.store.stop(5.0)
        await each.store._promoter.settled()
        each.store.check()
        each.store.close()
