"""Stores that share a directory, and an engine's moves in a line each."""

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.placement.admission import ADMISSIONS
from kvterrace.kvstore.remote import Remote, asking
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tiers import Wanted
from kvterrace.kvstore.tiers.base import Record
from kvterrace.kvstore.tiers.remote import Directory, OnThreads, RemoteTier
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

B = 4
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=B, head_dim=64, dtype="float16")
SPACE = Namespace(b"weights-0", LAYOUT)
PAGE = 4096
CAPACITY_BYTES = 64 << 20


class Node:
    """A store of `slots` slots over a store of last resort; one session on it."""

    def __init__(
        self,
        slots: int,
        tier: RemoteTier,
        admission: str = "all",
        backlog_share: float = 1.0,
        below: Below | None = None,
    ) -> None:
        self.tier = tier
        self.store = Store(Arena.anonymous(slots * PAGE), below=below)
        made = Remote.of(tier, ADMISSIONS[admission]())
        self.store.attach_remote(Remote(tier, made.finder, made.admission, backlog_share))
        self.session = self.store.open_session(SPACE, client="test")

    @staticmethod
    def prompt(name: int, blocks: int) -> bytes:
        return pack_tokens(np.arange(blocks * B) + name * 100_000)

    @staticmethod
    def content(tokens: bytes, ordinal: int) -> np.ndarray:
        seed = xxhash.xxh3_64_intdigest(tokens[: (ordinal + 1) * B * 4])
        return np.random.default_rng(seed).integers(0, 256, LAYOUT.block_bytes, dtype=np.uint8)

    def save(self, tokens: bytes) -> int:
        given = self.session.reserve(tokens, start=0, count=len(tokens) // 4 // B)
        sums = []
        for ordinal, ref in zip(given.blocks, given.slots, strict=True):
            block = self.session.arena.block(ref.slot)[: LAYOUT.block_bytes]
            block[:] = self.content(tokens, ordinal)
            sums.append(xxhash.xxh3_64_intdigest(block))
        assert not given.lease or self.session.commit(given.lease, sums)
        return len(given.blocks)

    async def saved(self, tokens: bytes) -> int:
        """Save and wait until it is written."""
        count = self.save(tokens)
        assert await self.store.flush(10.0) == 0
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

    async def close(self) -> None:
        self.store.check()
        await self.store.stop(5.0)
        self.store.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine a question may take longer than it is worth."""
    monkeypatch.setattr(asking, "MAX_ASK_S", 2.0)


@pytest.fixture
def shared(tmp_path):
    """The directory."""
    return tmp_path / "mnt"


@pytest.fixture
async def nodes(shared):
    """Makes nodes on the shared directory, and stops them; options: of Directory, RemoteTier and Node."""
    made: list[Node] = []

    def make(slots: int = 64, *, capacity_bytes: int = CAPACITY_BYTES, deadline_s: float = 2.0, clock=None, **options):
        places = {name: options.pop(name) for name in ("wall", "touch_s", "sync") if name in options}
        clocks = {} if clock is None else {"clock": clock}
        objects = OnThreads(Directory(shared, capacity_bytes, **places))
        made.append(Node(slots, RemoteTier(objects, deadline_s=deadline_s, **clocks), **options))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def record(number: int, size: int = PAGE, *, fingerprint: bytes = bytes(32), key: bytes | None = None) -> Record:
    payload = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
    key = bytes([number]) * 32 if key is None else key
    tokens, checksum = bytes([number]) * 64, xxhash.xxh3_64_intdigest(payload)
    return Record(fingerprint, key, bytes([number + 100]) * 32, tokens, size, payload, checksum, ordinal=number)


def ask(what: Record) -> Wanted:
    into = np.zeros(what.payload.nbytes, np.uint8)
    return Wanted(what.fingerprint, what.key, what.parent, what.tokens, what.block_bytes, into)
