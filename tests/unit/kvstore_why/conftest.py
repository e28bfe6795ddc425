"""A store with a tier below it and a clock of its own, and what engines do to it, in a line each."""

import asyncio
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.store import Store
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

B = 4  # tokens of a block
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=B, head_dim=64, dtype="float16")
SPACE = Namespace(b"weights-0", LAYOUT)


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOWER = _load(Path(__file__).parents[1] / "kvstore" / "lower_bench.py")


class Desk:
    """A store of `slots` slots. `now` is its clock."""

    def __init__(self, slots: int, tier=None, **options) -> None:
        self.now = 100.0
        self.tier = tier
        if tier is not None:
            inventory = tier.inventory() if tier.records else ()
            options["below"] = Below(tier, inventory, backlog_share=1.0, in_flight_share=1.0)
        self.store = Store(Arena.anonymous(slots * 4096), clock=lambda: self.now, **options)

    def open(self, namespace: Namespace = SPACE, tenant: str = ""):
        return self.store.open_session(namespace, client="test", tenant=tenant)

    @staticmethod
    def tokens(*ids: int) -> bytes:
        return pack_tokens(np.array(ids))

    @staticmethod
    def prompt(name: int, blocks: int) -> bytes:
        """Shares nothing with one of another name."""
        return pack_tokens(np.arange(blocks * B) + name * 100_000)

    @staticmethod
    def save(session, tokens: bytes) -> None:
        given = session.reserve(tokens, start=0, count=len(tokens) // 4 // B)
        sums: list[int] = []
        for ref in given.slots:
            block = session.arena.block(ref.slot)[: LAYOUT.block_bytes]
            block[:] = ref.slot % 251
            sums.append(xxhash.xxh3_64_intdigest(block))
        assert not given.lease or session.commit(given.lease, sums)

    async def saved(self, session, tokens: bytes) -> None:
        """Written to the tier below, too."""
        self.save(session, tokens)
        assert await self.store.flush(5.0) == 0

    @staticmethod
    def ask(session, tokens: bytes, **options):
        """An acquire without time, released at once."""
        got = asyncio.run(session.acquire(tokens, deadline_s=0, **{"skip": 0} | options))
        session.release(got.lease)
        return got

    @staticmethod
    async def aask(session, tokens: bytes, **options):
        """One that may wait."""
        got = await session.acquire(tokens, **{"skip": 0, "deadline_s": 5.0} | options)
        session.release(got.lease)
        return got


@pytest.fixture
def desk():
    """Call it with the number of slots and Store's options."""
    made: list[Desk] = []

    def make(slots: int = 64, **options) -> Desk:
        made.append(Desk(slots, **options))
        return made[-1]

    yield make
    for each in made:
        each.store.check()
        each.store.close()


@pytest.fixture
async def lower():
    """Call it with the number of slots; there is a tier below that obeys, of `blocks` blocks."""
    made: list[Desk] = []

    def make(slots: int, blocks: int = 1000, tier=None) -> Desk:
        made.append(Desk(slots, LOWER.FakeTier(blocks) if tier is None else tier))
        return made[-1]

    yield make
    for each in made:
        await each.store._promoter.settled()
        each.store.check()
        await each.store.stop(5.0)
        each.store.close()


@pytest.fixture
def layout():
    return LAYOUT


@pytest.fixture
def space():
    return SPACE
