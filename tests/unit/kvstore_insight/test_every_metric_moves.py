"""Each metric of a sidecar moves under the action that should move it. A family that nobody moves fails: those that
take a network, a broken disk or another process to move are named with the test that moves their counter."""

import asyncio
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.config import ServeConfig
from kvterrace.kvstore.events.feed import Feed, FeedFull, Limits
from kvterrace.kvstore.events.metrics import EventsCollector
from kvterrace.kvstore.insight import Insight
from kvterrace.kvstore.metrics import make_registry
from kvterrace.kvstore.remote.metrics import RemoteCollector
from kvterrace.kvstore.remote.setup import open_remote
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tenants import tenants as sharing
from kvterrace.kvstore.tenants.tenants import Tenants
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.kvstore.types import Miss, Receipt
from kvterrace.proto import BlockLayout, Namespace, Retention, RetentionRange
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import pack_tokens
from prometheus_client.registry import Collector

pytestmark = pytest.mark.unit

TESTS = Path(__file__).resolve().parents[2]
BLOCK = 16
LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=BLOCK, head_dim=8, dtype="float32")
STORE, INSIGHT, TENANT = "kvterrace_store_", "kvterrace_insight_", "kvterrace_tenant_"

# What one figure says for as long as the process lives.
FIXED = {
    STORE + "tier_capacity_bytes",
    STORE + "device_capacity_bytes",
    STORE + "backlog_limit_slots",
    INSIGHT + "what_if_bytes",
}
HERE = {
    "kvterrace_events_subscribers",
    "kvterrace_events_batches_total",
    "kvterrace_events_sent_batches_total",
    "kvterrace_events_published_total",
    "kvterrace_events_replay_bytes",
    "kvterrace_events_refused_subscribers_total",
    "kvterrace_scores_total",
    "kvterrace_remote_lookup_seconds_total",
}


def _load(path: Path):
    """Tests are no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ELSEWHERE = _load(Path(__file__).with_name("moved_elsewhere.py")).ELSEWHERE
"""The file, and what stands there for the counter behind the metric."""


def catalog() -> set[str]:
    families = _load(TESTS / "metrics_catalog.py").families()
    return {each.name for each in families if each.section != "The bundled engine"}


class Scrapes:
    """moved: families of which a series changed or came between two looks."""

    def __init__(self, store: Store, *others: Collector) -> None:
        self._registry = make_registry(store.stats, store.insight)
        for each in others:
            self._registry.register(each)
        self.moved: set[str] = set()
        self._last = self._read()

    def look(self) -> set[str]:
        now, before = self._read(), self._last
        self._last = now
        changed = {key[0] for key in now.keys() | before.keys() if now.get(key, 0.0) != before.get(key, 0.0)}
        self.moved |= changed
        return changed

    def _read(self) -> dict[tuple[str, str, str], float]:
        found = {}
        for family in self._registry.collect():
            name = family.name + ("_total" if family.type == "counter" else "")
            for sample in family.samples:
                found[name, sample.name, str(sorted(sample.labels.items()))] = sample.value
        return found


class Node:
    """A store with a small disk, and an engine on it."""

    def __init__(self, folder: Path, tenants: Tenants | None = None) -> None:
        self.now = 0.0
        path = NvmePath(folder / "nvme", 4 << 20, min_free_bytes=0, daily_write_bytes=1 << 30)
        self.tier = NvmeTier.open([path], segment_bytes=1 << 20)
        self.store = Store(
            Arena.anonymous(64 * 4096),
            below=Below(self.tier, backlog_share=1.0, in_flight_share=1.0),
            slab_bytes=4096,
            tenants=tenants,
            insight=Insight(clock=lambda: self.now, cpu=self.cpu),
            max_backlog_slots=48,
        )
        self.scrapes = Scrapes(self.store)

    def cpu(self) -> float:
        self.now += 1e-4
        return self.now

    def open(self, **options):
        return self.store.open_session(Namespace(b"w" * 32, LAYOUT, label="tiny"), client="me", **options)

    @staticmethod
    def prompt(name: int, blocks: int) -> bytes:
        return pack_tokens(np.arange(blocks * BLOCK) + name * 100_000)

    def reserve(self, session, tokens: bytes, **options):
        return session.reserve(tokens, start=0, count=len(tokens) // 4 // BLOCK, **options)

    def commit(self, session, given) -> None:
        sums = []
        for ref in given.slots:
            block = session.arena.block(ref.slot)[: session.arena.block_bytes]
            block[:] = np.arange(len(block)) // 64 + ref.slot
            sums.append(xxhash.xxh3_64_intdigest(block))
        assert session.commit(given.lease, sums)

    async def save(self, session, tokens: bytes, **options) -> None:
        given = self.reserve(session, tokens, **options)
        if given.lease:
            self.commit(session, given)
        await self.store.flush(10.0)

    async def ask(self, session, tokens: bytes, skip: int = 0) -> None:
        got = await session.acquire(tokens, skip=skip, deadline_s=10.0)
        session.release(got.lease)


async def test_store_and_insight(tmp_path):
    node = Node(tmp_path)
    scrapes, store = node.scrapes, node.store
    moves: dict[str, set[str]] = {}

    def by(action: str) -> None:
        moves[action] = {name.removeprefix("kvterrace_") for name in scrapes.look()}

    session = node.open()
    by("open")
    given = node.reserve(session, node.prompt(1, 8), retention=[RetentionRange(0, 2, Retention(50, 0.0, True))])
    other = node.reserve(session, node.prompt(1, 8))
    by("reserve")
    node.commit(session, given)
    node.commit(session, other)
    await store.flush(10.0)
    by("commit")
    for _ in range(8):
        session.observe([(0, 1024, 1.0), (1024, 1024, 1.1)])
    await node.ask(session, node.prompt(1, 12))
    by("acquire")
    node.reserve(session, node.prompt(2, 60))
    by("too much at once")
    for lease in list(session.writes):
        session.abort(lease)
    for name in range(10, 34):
        await node.save(session, node.prompt(name, 16))
    by("more than fits")
    await node.ask(session, node.prompt(32, 16))
    await node.ask(session, node.prompt(29, 16))
    by("what only the disk has")
    session.prefetch(1, node.prompt(26, 16), skip=0)
    await store._promoter.settled()
    await node.ask(session, node.prompt(26, 16))
    by("prefetch")
    got = await session.acquire(node.prompt(26, 16), skip=0, deadline_s=10.0)
    session.release(got.lease, corrupt=[15])
    by("corrupt")
    session.served(Receipt("a", {"dram": 100, "computed": 12}, saved_s=1.0, ttft_s=0.2))
    session.served(Receipt("b", {"computed": 112}, Miss("never_seen"), saved_s=-0.5, ttft_s=2.0))
    by("receipts")
    head, rest = node.prompt(50, 2), node.prompt(51, 6)
    for number in range(5):
        prompt = head + node.prompt(100 + number, 1)[:24] + rest
        await node.ask(session, prompt)
        await node.save(session, prompt)
    store.insight.catch_up()
    by("insight")
    await store.clear()
    by("clear")
    _assert_where_it_belongs(moves)
    await store.stop(5.0)
    store.close()
    told = {name for name in catalog() if name.startswith((STORE, INSIGHT))}
    worked = {INSIGHT + "work_seconds_total"}  # by the task alone, which is another test's
    assert told - FIXED - ELSEWHERE.keys() - worked - scrapes.moved == set(), "nothing moved these"


def _assert_where_it_belongs(moves: dict[str, set[str]]) -> None:
    """The telling ones, under their own action and under no earlier one."""
    first = {
        "store_sessions_opened_total": "open",
        "store_backlog_slots": "reserve",
        "store_committed_blocks_total": "commit",
        "store_duplicate_blocks_total": "commit",
        "store_tier_pinned_blocks": "commit",
        "store_tier_came_bytes_total": "commit",
        "store_demoted_blocks_total": "commit",
        "store_tier_transfer_seconds": "commit",
        "store_hit_tokens_total": "acquire",
        "store_miss_tokens_total": "acquire",
        "store_saved_seconds_total": "acquire",
        "store_dropped_save_blocks_total": "too much at once",
        "store_evicted_blocks_total": "more than fits",
        "store_tier_left_bytes_total": "more than fits",
        "store_residence_seconds": "more than fits",
        "store_tier_evicted_blocks_total": "more than fits",
        "store_promoted_blocks_total": "what only the disk has",
        "store_tier_read_bytes_total": "what only the disk has",
        "store_prefetched_blocks_total": "prefetch",
        "store_checksum_failures_total": "corrupt",
        "store_served_tokens_total": "receipts",
        "store_served_ttft_seconds": "receipts",
        "insight_findings": "insight",
        "insight_what_if_hit_share": "insight",
    }
    came = {metric: next((action for action, moved in moves.items() if metric in moved), "never") for metric in first}
    assert came == first


async def test_served_tokens_sum_to_the_prompts(tmp_path):
    node = Node(tmp_path)
    session, rng, prompts = node.open(), np.random.default_rng(5), 0
    for number in range(200):
        counts = rng.integers(0, 500, 6).tolist()
        tiers = dict(zip(("hbm", "dram", "nvme", "peer", "remote", "computed"), counts, strict=True))
        prompts += sum(counts)
        session.served(Receipt(f"r{number}", tiers))
    families = {each.name: each for each in make_registry(node.store.stats, node.store.insight).collect()}
    told = {each.labels["tier"]: each.value for each in families[STORE + "served_tokens"].samples}
    assert sum(told.values()) == prompts
    assert set(told) == {"hbm", "dram", "nvme", "peer", "remote", "computed"}
    await node.store.stop(5.0)
    node.store.close()


async def test_tenants(tmp_path):
    limits = {"acme": sharing.Limits(1 << 17, 1 << 15, 1 << 20, 1 << 19)}
    node = Node(tmp_path, Tenants(limits, bytes(32), dram_bytes=64 * 4096, nvme_bytes=4 << 20))
    before = {each.name for each in make_registry(node.store.stats).collect()}
    session = node.open(tenant="acme")
    await node.save(session, node.prompt(1, 4))
    await node.ask(session, node.prompt(1, 6))
    node.scrapes.look()
    limited = {TENANT + "quota_bytes", TENANT + "floor_bytes"}
    told = {name for name in catalog() if name.startswith(TENANT)}
    assert told - limited - node.scrapes.moved == set()
    assert limited <= before
    await node.store.stop(5.0)
    node.store.close()


async def test_events_and_scores(tmp_path):
    node = Node(tmp_path)
    servicer = Servicer(node.store, "", b"boot", node="n")
    feed = Feed(node.store, node.store.holdings.hbm, node="n", epoch=b"e", limits=Limits(max_subscribers=1))
    scrapes = Scrapes(node.store, EventsCollector(feed, node.store.holdings.hbm, servicer.scores))
    session, subscriber = node.open(), feed.subscribe()
    async with asyncio.timeout(10):
        await subscriber.next()
        await node.save(session, node.prompt(1, 4))
        await subscriber.next()
    with pytest.raises(FeedFull):
        feed.subscribe()
    await servicer.scores.score(pb.ScoreRequest(fingerprint=session.fingerprint, tokens=node.prompt(1, 4)))
    scrapes.look()
    subscriber.close()
    feed.close()
    assert {name for name in HERE if "remote" not in name} <= scrapes.moved
    await node.store.stop(5.0)
    node.store.close()


async def test_the_remote_tier_tells_how_long_questions_take(tmp_path):
    remote = open_remote(ServeConfig(remote=f"file://{tmp_path / 'remote'}", remote_admission="all"))
    (tmp_path / "remote").mkdir()
    node = Node(tmp_path)
    node.store.attach_remote(remote)
    remote.tier.start()
    scrapes, session = Scrapes(node.store, RemoteCollector(remote)), node.open()
    await node.save(session, node.prompt(1, 4))
    await node.store.flush(10.0)
    await node.store.clear()
    await node.ask(session, node.prompt(1, 4))
    await node.ask(session, node.prompt(2, 4))
    scrapes.look()
    assert "kvterrace_remote_lookup_seconds_total" in scrapes.moved
    await node.store.stop(5.0)
    node.store.close()


def test_whatever_is_moved_elsewhere_is_moved_there():
    told = catalog()
    assert ELSEWHERE.keys() <= told, "no such metric"
    for name, (file, counter) in ELSEWHERE.items():
        assert counter in (TESTS / file).read_text(), f"{name} is not in {file} any more"
    known = {name for name in told if name.startswith((STORE, INSIGHT, TENANT))} | ELSEWHERE.keys() | HERE
    assert told - known == set(), "who moves these?"
