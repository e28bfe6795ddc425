"""A store with a tier below DRAM, engines that report what is in their memory, and subscribers that are a dict."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from kvterrace.kvstore.events.feed import Feed, Limits
from kvterrace.kvstore.events.types import Kind
from kvterrace.kvstore.types import HbmChange
from kvterrace.radix import block_keys, pack_tokens

BLOCK_TOKENS = 4
LOWER = Path(__file__).parents[1] / "kvstore" / "lower_bench.py"


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOWER_BENCH = _load(LOWER)


class FakeEngine:
    """A tree of blocks with numbers, as an engine's pool has it, and the session that is told of it."""

    def __init__(self, session, slots: int = 64) -> None:
        self.session = session
        self.free = list(range(slots))
        self.blocks: dict[bytes, int] = {}  # number by prefix

    def compute(self, tokens: bytes) -> None:
        size = BLOCK_TOKENS * 4
        prefixes = [tokens[:end] for end in range(size, len(tokens) + 1, size)]
        fresh = [each for each in prefixes if each not in self.blocks][: len(self.free)]
        if not fresh:
            return
        parent = self.blocks.get(fresh[0][:-size], -1)
        for each in fresh:
            self.blocks[each] = self.free.pop()
        numbers = np.array([self.blocks[each] for each in fresh], dtype=np.uint32)
        self.tell([HbmChange(numbers, b"".join(each[-size:] for each in fresh), parent)])

    def drop(self, rng, count: int) -> None:
        """Tips, one after the other."""
        numbers = []
        for _ in range(min(count, len(self.blocks))):
            tips = [each for each in self.blocks if not any(o.startswith(each) and o != each for o in self.blocks)]
            prefix = rng.choice(sorted(tips))
            numbers.append(self.blocks.pop(prefix))
        if numbers:
            self.tell([HbmChange(np.array(numbers, dtype=np.uint32))])
            self.free += numbers

    def say_all(self) -> None:
        size = BLOCK_TOKENS * 4
        changes = [
            HbmChange(np.array([number], dtype=np.uint32), prefix[-size:], self.blocks.get(prefix[:-size], -1))
            for prefix, number in sorted(self.blocks.items(), key=lambda item: len(item[0]))
        ]
        self.tell(changes, whole=True)

    def tell(self, changes, *, whole: bool = False) -> None:
        self.session.hbm(changes, whole=whole)

    def keys(self) -> set[bytes]:
        seed = self.session.fingerprint
        return {block_keys(seed, prefix, BLOCK_TOKENS)[-1] for prefix in self.blocks}


class View:
    """What a subscriber believes: (tier, session, fingerprint) -> keys."""

    def __init__(self) -> None:
        self.has: dict[tuple, set[bytes]] = {}
        self.tokens: dict[bytes, bytes] = {}
        self.epoch, self.next, self.resets = b"", 0, 0

    def apply(self, batch) -> None:
        if batch.reset:
            self.has.clear()
            self.resets += 1
        elif not batch.snapshot:
            assert batch.sequence >= self.next
        for event in batch.events:
            place = (event.tier, event.engine.session, event.fingerprint)
            keys = self.has.setdefault(place, set())
            if event.kind is Kind.STORED:
                keys |= set(event.split())
                chained = block_keys(event.parent, event.tokens, BLOCK_TOKENS)
                assert chained == event.split(), "keys are not those of the tokens below the parent"
            elif event.kind is Kind.REMOVED:
                keys -= set(event.split())
            else:
                keys.clear()
        if not batch.more:
            self.next = batch.sequence + 1

    @property
    def held(self) -> dict[tuple, set[bytes]]:
        return {place: keys for place, keys in self.has.items() if keys}


class EventsBench:
    def __init__(self, slots: int = 32, **limits) -> None:
        self.lower = LOWER_BENCH.LowerBench(slots, LOWER_BENCH.FakeTier())
        self.store = self.lower.store
        quick = {"batch_s": 0.0, "snapshot_every_s": 0.0, "linger_s": 0.05, **limits}
        self.feed = Feed(self.store, self.store.holdings.hbm, node="n", epoch=b"epoch-1", limits=Limits(**quick))

    async def saved(self, tokens: bytes, session) -> None:
        """By another session than the bench's own."""
        own, self.lower.session = self.lower.session, session
        try:
            await self.lower.saved(tokens)
        finally:
            self.lower.session = own

    def truth(self, engines=()) -> dict[tuple, set[bytes]]:
        """From the store's own indexes."""
        found: dict[tuple, set[bytes]] = {}
        for tier, indexes in (
            ("dram", [space.index for space in self.store._spaces.values()]),
            ("nvme", [catalog.index for catalog in self.store._depot.catalogs()]),
        ):
            for index in indexes:
                keys = {index.key(block) for block in index.iterate()}
                if keys:
                    found[tier, 0, index.seed] = keys
        for engine in engines:
            if engine.blocks and not engine.session.closed:
                found["hbm", engine.session.id, engine.session.fingerprint] = engine.keys()
        return found


@pytest.fixture
async def events_bench():
    made = []

    def make(*args, **options) -> EventsBench:
        made.append(EventsBench(*args, **options))
        return made[-1]

    yield make
    for each in made:
        each.feed.close()
        store = each.store
        await store._promoter.settled()
        store.holdings.hbm.check()
        store.check()
        await store.stop(5.0)
        store.close()


@pytest.fixture
def make_view():
    return View


@pytest.fixture
def make_engine():
    return FakeEngine


@pytest.fixture
def prompt():
    def make(name: int, blocks: int) -> bytes:
        return pack_tokens(np.arange(blocks * BLOCK_TOKENS) + name * 100_000)

    return make
