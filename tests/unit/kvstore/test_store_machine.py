"""Random histories of several sessions against a plain model, with real bytes in the arena recounted after every step.

The model knows, for each namespace, which prefixes are visible and whose bytes they have. A prefix is a tuple of block
ids; the universe is small on purpose, so that histories collide.
"""

import asyncio
import hashlib

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.placement.policies import POLICY_NAMES, make_policy
from kvterrace.kvstore.store import Store
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

BLOCK_TOKENS = 4
PAGES = 24  # in three slabs: twelve small blocks a slab at most, so that eviction is the rule
SMALL = BlockLayout(1, 1, 1, BLOCK_TOKENS, 100, "int8")
LARGE = BlockLayout(1, 1, 2, BLOCK_TOKENS, 1000, "int8")
NAMESPACES = [
    Namespace(b"weights-A", SMALL),
    Namespace(b"weights-A", SMALL, tenant_salt=b"tenant"),
    Namespace(b"weights-B", LARGE),
]
MAX_BLOCKS = 5
PREFIXES = st.lists(st.integers(0, 1), min_size=1, max_size=MAX_BLOCKS).map(tuple)


def pack(prefix: tuple[int, ...], extra: int = 0) -> bytes:
    """The prompt of these blocks, with `extra` tokens behind the last full one."""
    ids = [block * 1000 + position for block in prefix for position in range(BLOCK_TOKENS)]
    return pack_tokens(ids + [7] * extra)


def payload(namespace: int, prefix: tuple[int, ...], writer: int, size: int) -> np.ndarray:
    seed = hashlib.sha256(repr((namespace, prefix, writer)).encode()).digest()
    return np.resize(np.frombuffer(seed, np.uint8), size)


class StoreMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(POLICY_NAMES))
    def begin(self, policy):
        self.now = 0.0
        self.store = Store(
            Arena.anonymous(PAGES * 4096),
            policy=make_policy(policy),
            clock=lambda: self.now,
            max_backlog_slots=10,
            max_session_backlog_slots=7,
            max_session_leases=5,
            slab_bytes=PAGES * 4096 // 3,
            ghost_entries=64,
        )
        self.visible = [{} for _ in NAMESPACES]  # prefix -> writer whose bytes it has
        self.sessions = {}  # id -> (session, namespace number)
        self.reads = {}  # lease -> (session id, prefix, first, slots, bytes, who wrote each block of the prefix)
        self.writes = {}  # lease -> (session id, prefix, blocks, slots, live?)
        for namespace in (0, 0, 1, 2):
            self.open(namespace)

    def session(self, data):
        return data.draw(st.sampled_from(sorted(self.sessions)), "session")

    def prompt(self, data, namespace):
        """A prefix, mostly one that has been met before or that extends it."""
        known = [*self.visible[namespace], *(held[1] for held in self.writes.values())]
        tail = data.draw(PREFIXES, "prefix")
        if not known or data.draw(st.integers(0, 3), "fresh") == 3:
            return tail
        base = data.draw(st.sampled_from(sorted(known)), "known")
        return (base + tail)[:MAX_BLOCKS] if data.draw(st.integers(0, 2), "longer") else base

    def leased(self, namespace):
        """Prefixes that must not leave: at or above a lease."""
        kept, there = set(), self.visible[namespace]
        for owner, prefix, *_, writers in self.reads.values():
            if self.sessions[owner][1] == namespace:  # what was cleared and saved anew is another block
                paths = [prefix[: i + 1] for i in range(len(prefix))]
                kept.update(path for path, who in zip(paths, writers, strict=True) if there.get(path) == who)
        for owner, prefix, blocks, *_ in self.writes.values():
            if self.sessions[owner][1] == namespace:
                kept.update(prefix[: i + 1] for i in range(blocks[0]))
        return kept

    @rule(namespace=st.integers(0, len(NAMESPACES) - 1))
    def open(self, namespace):
        if len(self.sessions) < 6:
            session = self.store.open_session(NAMESPACES[namespace], client="test")
            self.sessions[session.id] = (session, namespace)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), often=st.integers(0, 9))
    def close(self, data, often):
        if often < 7:
            return
        owner = self.session(data)
        self.sessions[owner][0].close()
        self.reads = {lease: held for lease, held in self.reads.items() if held[0] != owner}
        self.writes = {lease: held for lease, held in self.writes.items() if held[0] != owner}
        del self.sessions[owner]

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), skip=st.sampled_from([0, 0, 1, 2]), extra=st.integers(0, BLOCK_TOKENS - 1))
    def acquire(self, data, skip, extra):
        owner = self.session(data)
        session, namespace = self.sessions[owner]
        prefix = self.prompt(data, namespace)
        self.now += 1
        got = asyncio.run(session.acquire(pack(prefix, extra), skip=skip, deadline_s=0))
        known = next((n for n in range(len(prefix)) if prefix[: n + 1] not in self.visible[namespace]), len(prefix))
        held = sum(owner == each[0] for each in [*self.reads.values(), *self.writes.values()])
        if held >= 5 and known > skip:
            assert (got.lease, got.reason) == (0, "busy")
            return
        assert len(got.slots) == max(known - skip, 0)
        assert bool(got.lease) == bool(got.slots)
        first = max(known, skip)  # what is skipped the engine has
        assert (got.reason == "") == (first >= len(prefix))
        if first < len(prefix):
            pending = any(
                self.sessions[other][1] == namespace
                and first in blocks
                and first < len(wanted)
                and wanted[: first + 1] == prefix[: first + 1]
                for other, wanted, blocks, *_ in self.writes.values()
            )
            assert (got.reason == "not_committed") == pending
        if got.lease:
            copies = [session.arena.block(ref.slot)[: session.arena.block_bytes].copy() for ref in got.slots]
            for position, (ref, copy) in enumerate(zip(got.slots, copies, strict=True)):
                path = prefix[: skip + position + 1]
                wanted = payload(namespace, path, self.visible[namespace][path], session.arena.block_bytes)
                assert (copy == wanted).all(), "bytes of another block"
                assert xxhash.xxh3_64_intdigest(copy) == ref.checksum
            writers = [self.visible[namespace][prefix[: i + 1]] for i in range(known)]
            self.reads[got.lease] = (owner, prefix[:known], skip, got.slots, copies, writers)

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def release(self, data):
        lease = data.draw(st.sampled_from(sorted(self.reads)), "lease")
        owner, *_ = self.reads.pop(lease)
        self.sessions[owner][0].release(lease)
        self.sessions[owner][0].release(lease)  # a second time: nothing more

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def release_corrupt(self, data):
        lease = data.draw(st.sampled_from(sorted(self.reads)), "lease")
        owner, prefix, first, slots, *_ = self.reads.pop(lease)
        session, namespace = self.sessions[owner]
        position = data.draw(st.integers(0, len(slots) - 1), "position")
        bad = prefix[: first + position + 1]
        # If the block was dropped while we held it, what is there now under its name is another copy, and stays.
        same = self.lies_at(namespace, bad) == slots[position].slot
        session.release(lease, corrupt=[position])
        if same:
            self.visible[namespace] = {
                path: writer for path, writer in self.visible[namespace].items() if path[: len(bad)] != bad
            }

    def lies_at(self, namespace, prefix):
        if prefix not in self.visible[namespace]:
            return None
        session = self.store.open_session(NAMESPACES[namespace], client="probe")
        got = asyncio.run(session.acquire(pack(prefix), skip=len(prefix) - 1, deadline_s=0))
        session.close()
        return got.slots[0].slot

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def save(self, data):
        """What an engine does for a new prompt, without anything in between."""
        owner = self.session(data)
        lease = self.try_reserve(owner, self.prompt(data, self.sessions[owner][1]), 0)
        if lease:
            self.finish_write(lease, commit=True)

    @precondition(lambda self: self.sessions and len(self.writes) < 4)
    @rule(data=st.data(), start=st.sampled_from([0, 0, 0, 1, 2, 3]))
    def reserve(self, data, start):
        owner = self.session(data)
        self.try_reserve(owner, self.prompt(data, self.sessions[owner][1]), start)

    def try_reserve(self, owner, prefix, start):
        session, namespace = self.sessions[owner]
        start = min(start, len(prefix) - 1)
        self.now += 1
        before = [dict(each) for each in self.visible]
        kept = [self.leased(number) for number in range(len(NAMESPACES))]
        got = session.reserve(pack(prefix), start=start, count=len(prefix) - start)
        self.forget_evicted()
        for number, each in enumerate(before):
            lost = set(each) - set(self.visible[number])
            assert not lost & kept[number], "a leased block was evicted"
        known = next((n for n in range(len(prefix)) if prefix[: n + 1] not in before[namespace]), len(prefix))
        if known == len(prefix):
            assert (got.lease, got.reason) == (0, "present")
        elif known < start:
            assert (got.lease, got.reason) == (0, "no_parent")
        elif got.lease:
            assert got.blocks == tuple(range(known, known + len(got.blocks)))
            assert (got.reason == "") == (known + len(got.blocks) == len(prefix))
            for ordinal, ref in zip(got.blocks, got.slots, strict=True):
                block = session.arena.block(ref.slot)
                block[: session.arena.block_bytes] = payload(
                    namespace, prefix[: ordinal + 1], got.lease, session.arena.block_bytes
                )
            self.writes[got.lease] = [owner, prefix, got.blocks, got.slots, True]
        else:
            assert got.reason in {"full", "backlog", "busy"}
        return got.lease

    @precondition(lambda self: self.writes)
    @rule(data=st.data(), commit=st.sampled_from([True, True, False]))
    def end_write(self, data, commit):
        self.finish_write(data.draw(st.sampled_from(sorted(self.writes)), "lease"), commit)

    def finish_write(self, lease, commit):
        owner, prefix, blocks, slots, live = self.writes.pop(lease)
        session, namespace = self.sessions[owner]
        if not commit:
            session.abort(lease)
            return
        size = session.arena.block_bytes
        sums = [xxhash.xxh3_64_intdigest(session.arena.block(ref.slot)[:size]) for ref in slots]
        parents = all(prefix[: n + 1] in self.visible[namespace] for n in range(blocks[0]))
        assert session.commit(lease, sums) == (live and parents)
        assert not session.commit(lease, sums), "a lease ends once"
        if live and parents:
            for ordinal in blocks:
                self.visible[namespace].setdefault(prefix[: ordinal + 1], lease)

    @rule(namespace=st.one_of(st.none(), st.integers(0, len(NAMESPACES) - 1)), often=st.integers(0, 9))
    def clear(self, namespace, often):
        if often < 8:
            return
        numbers = range(len(NAMESPACES)) if namespace is None else [namespace]
        count = asyncio.run(self.store.clear(None if namespace is None else NAMESPACES[namespace].fingerprint()))
        assert count == sum(len(self.visible[number]) for number in numbers)
        for number in numbers:
            self.visible[number] = {}
            for held in self.writes.values():
                if self.sessions[held[0]][1] == number:
                    held[4] = False

    def forget_evicted(self):
        """Bring the model up to date after a step that may evict; what is left must be prefix-closed."""
        for number in range(len(NAMESPACES)):
            present = {path for path in self.visible[number] if self.found(number, path) == len(path)}
            self.visible[number] = {path: self.visible[number][path] for path in present}
            assert all(path[:-1] in present for path in present if len(path) > 1)

    def found(self, namespace, prefix):
        session = self.store.open_session(NAMESPACES[namespace], client="probe")
        tiers = session.lookup(pack(prefix)).tiers
        session.close()
        return tiers.get("dram", 0) // BLOCK_TOKENS

    @invariant()
    def all_adds_up(self):
        if not hasattr(self, "store"):
            return
        self.store.check()
        for number, visible in enumerate(self.visible):
            for prefix in visible:
                assert self.found(number, prefix) == len(prefix), "a visible block was lost"
        stats = self.store.stats()
        assert sum(each.blocks for each in stats.namespaces) == sum(len(each) for each in self.visible)
        assert stats.tiers[0].used_bytes <= stats.tiers[0].capacity_bytes
        for owner, _, _, slots, copies, _ in self.reads.values():
            arena = self.sessions[owner][0].arena
            for ref, copy in zip(slots, copies, strict=True):
                assert arena.generation(ref.slot) == ref.generation, "a leased slot was freed"
                assert (arena.block(ref.slot)[: arena.block_bytes] == copy).all(), "a leased slot was written"

    def teardown(self):
        if hasattr(self, "store"):
            for session, _ in self.sessions.values():
                session.close()
            self.store.check()
            stats = self.store.stats()
            assert (stats.tiers[0].leased_bytes, stats.tiers[0].reserved_bytes, stats.sessions) == (0, 0, ())
            self.store.close()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
