"""A store whose traffic is looked at, and what an engine does to it, in a line each."""

import numpy as np
import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.insight import Insight
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.types import Receipt
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

BLOCK = 16
LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=BLOCK, head_dim=8, dtype="float32")
assert LAYOUT.slot_bytes == 4096


class Desk:
    """slots: of the arena. now, wall, cpu: its clocks."""

    def __init__(self, slots: int, **options) -> None:
        self.now, self.wall, self.cpu = 0.0, 1_000_000.0, 0.0
        self.insight = Insight(clock=lambda: self.now, wall=lambda: self.wall, cpu=lambda: self.cpu, **options)
        arena = Arena.anonymous(slots * 4096)
        self.store = Store(arena, insight=self.insight, clock=lambda: self.now, slab_bytes=4096)

    def open(self, weights: bytes = b"w" * 32, label: str = "tiny"):
        return self.store.open_session(Namespace(weights, LAYOUT, label=label), client="test")

    @staticmethod
    def prompt(name: int, blocks: int) -> bytes:
        return pack_tokens(np.arange(blocks * BLOCK) + name * 100_000)

    @staticmethod
    def save(session, tokens: bytes) -> None:
        given = session.reserve(tokens, start=0, count=len(tokens) // 4 // BLOCK)
        if given.lease:
            assert session.commit(given.lease, [0] * len(given.slots))

    def ask(self, session, tokens: bytes, skip: int = 0):
        """As an engine does it: acquire, release, save."""
        got = session.acquire_now(tokens, skip=skip, deadline_s=0)
        session.release(got.lease)
        self.save(session, tokens)
        return got


def receipt(request_id: str = "r", computed: int = 16, **tiers: int) -> Receipt:
    return Receipt(request_id, {**tiers, "computed": computed})


@pytest.fixture
def receipt_of():
    return receipt


@pytest.fixture
def desk():
    """Call it with the number of slots and Insight's options."""
    made = []

    def make(slots: int = 64, **options) -> Desk:
        made.append(Desk(slots, **options))
        return made[-1]

    yield make
    for each in made:
        each.store.check()
        each.store.close()
