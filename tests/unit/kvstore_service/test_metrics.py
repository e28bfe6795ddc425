"""Every metric moves under the action that should move it, and under no other."""

from collections.abc import Iterator

import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.metrics import make_registry
from kvterrace.kvstore.session import Session
from kvterrace.kvstore.store import Store
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=16, head_dim=8, dtype="float32")
NAMESPACE = Namespace(weights_digest=b"w" * 32, layout=LAYOUT, label="tiny")
SLOTS = 32


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(Arena.anonymous(SLOTS * 4096), max_backlog_slots=24, slab_bytes=4096)
    yield store
    store.close()


class Scrapes:
    """What moved since the last look: {"name{label}": by how much}."""

    def __init__(self, store: Store) -> None:
        self._registry = make_registry(store.stats)
        self._last = self._read()

    def moved(self) -> dict[str, float]:
        before, self._last = self._last, self._read()
        return {name: value - before.get(name, 0) for name, value in self._last.items() if value != before.get(name, 0)}

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for metric in self._registry.collect():
            for sample in metric.samples:
                label = sample.labels.get("tier") or sample.labels.get("reason") or ""
                found[f"{sample.name.removeprefix('kvterrace_store_')}{{{label}}}"] = sample.value
        return found


def tokens(blocks: int, first: int = 0) -> bytes:
    return pack_tokens(range(first, first + blocks * 16))


def save(session: Session, blocks: int, first: int = 0) -> None:
    given = session.reserve(tokens(blocks, first), start=0, count=blocks)
    assert session.commit(given.lease, [0] * len(given.slots))


async def test_each_metric_moves_under_its_own_action(store: Store) -> None:
    scrapes = Scrapes(store)
    session = store.open_session(NAMESPACE, client="me")
    assert scrapes.moved() == {"sessions_opened_total{}": 1, "namespace_sessions{}": 1}

    write = session.reserve(tokens(4), start=0, count=4)
    size = 4 * 4096
    pinned = {"tier_used_bytes{dram}": size, "tier_leased_bytes{dram}": size, "tier_reserved_bytes{dram}": size}
    assert scrapes.moved() == {**pinned, "backlog_slots{}": 4}
    assert session.commit(write.lease, [0] * 4)
    assert scrapes.moved() == {
        "committed_blocks_total{}": 4,
        "backlog_slots{}": -4,
        "tier_came_bytes_total{dram}": size,
        "tier_blocks{dram}": 4,
        "tier_leased_bytes{dram}": -size,
        "tier_reserved_bytes{dram}": -size,
        "namespace_blocks{}": 4,
        "namespace_bytes{}": size,
    }

    read = await session.acquire(tokens(5), skip=1, deadline_s=0)
    assert scrapes.moved() == {
        "acquires_total{}": 1,
        "hit_tokens_total{dram}": 48,
        "miss_tokens_total{never_seen}": 16,
        "namespace_hit_tokens_total{}": 48,
        "namespace_miss_tokens_total{}": 16,
        "tier_leased_bytes{dram}": size,
    }
    session.release(read.lease)
    assert scrapes.moved() == {"tier_leased_bytes{dram}": -size}
    session.lookup(tokens(4))
    assert scrapes.moved() == {}


async def test_losses_are_counted_by_their_reason(store: Store) -> None:
    session = store.open_session(NAMESPACE, client="me")
    save(session, 4)
    read = await session.acquire(tokens(4), skip=0, deadline_s=0)
    scrapes = Scrapes(store)
    session.release(read.lease, corrupt=[3])
    moved = scrapes.moved()
    assert moved["checksum_failures_total{}"] == 1
    assert moved["evicted_blocks_total{corrupt}"] == 1
    assert moved["evicted_reused_blocks_total{corrupt}"] == 1

    kept = session.reserve(tokens(30, 1000), start=0, count=30)
    assert scrapes.moved()["dropped_save_blocks_total{backlog}"] == 6
    session.abort(kept.lease)
    for prompt in range(2, 6):
        save(session, 10, prompt * 1000)
    moved = scrapes.moved()
    assert moved["evicted_blocks_total{capacity}"] == 4 * 10 + 3 - SLOTS
    assert moved["committed_blocks_total{}"] == 40

    first, second = (session.reserve(tokens(2, 9000), start=0, count=2) for _ in range(2))
    session.commit(first.lease, [0, 0])
    session.commit(second.lease, [0, 0])
    assert scrapes.moved()["duplicate_blocks_total{}"] == 2
    await store.clear()
    assert scrapes.moved()["evicted_blocks_total{cleared}"] > 0
