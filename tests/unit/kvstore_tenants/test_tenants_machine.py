"""Random histories of three tenants with quotas and floors that change, in two sizes of slots, recounted at each step.

Blocks are checked by their bytes: a tenant only ever reads what was written in its own namespace.
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
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.placement.policies import POLICY_NAMES, make_policy
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tenants.tenants import Limits, Tenants
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

B = 4
PAGE = 4096
PAGES = 24  # in three slabs
SMALL = BlockLayout(1, 1, 1, B, 100, "int8")
LARGE = BlockLayout(1, 1, 2, B, 1000, "int8")
SPACES = [Namespace(b"weights-A", SMALL), Namespace(b"weights-B", LARGE)]
NAMES = ["a", "b", ""]
PREFIXES = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
QUOTAS, FLOORS = st.sampled_from([None, 0, 3, 6, 9, 16]), st.sampled_from([0, 0, 2, 5, 8])


def pack(prefix: tuple[int, ...]) -> bytes:
    return pack_tokens([block * 1000 + position for block in prefix for position in range(B)])


def payload(session, prefix: tuple[int, ...]) -> np.ndarray:
    seed = hashlib.sha256(session.fingerprint + repr(prefix).encode()).digest()
    return np.resize(np.frombuffer(seed, np.uint8), session.arena.block_bytes)


class TenantsMachine(RuleBasedStateMachine):
    @initialize(policy=st.sampled_from(POLICY_NAMES), data=st.data())
    def begin(self, policy, data):
        self.now = 0.0
        self.tenants = Tenants({"a": Limits(), "b": Limits()}, b"s" * 32, dram_bytes=PAGES * PAGE)
        self.store = Store(
            Arena.anonymous(PAGES * PAGE),
            policy=make_policy(policy),
            clock=lambda: self.now,
            slab_bytes=PAGES * PAGE // 3,
            tenants=self.tenants,
        )
        self.sessions = [
            (name, self.store.open_session(space, client="test", tenant=name)) for name in NAMES for space in SPACES
        ]
        self.reads = {}  # lease -> (session, slots, copies)
        self.writes = {}  # lease -> (session, prefix, given)
        self.met = 0
        for name in ("a", "b"):
            self.limit(name, data.draw(QUOTAS), data.draw(FLOORS))

    def shares(self):
        return {each.name: each.dram for each in self.tenants}

    def step(self, name, act):
        """Do something on a tenant's account; nobody else may lose what its floor keeps."""
        before = {each: share.used for each, share in self.shares().items()}
        self.now += 1
        result = act()
        for each, share in self.shares().items():
            lost = before[each] - share.used
            if each != name and lost > 0:
                assert share.used >= share.floor, f"{each!r} was taken below its floor by {name!r}"
            if share.quota is not None and share.used > share.quota:
                assert share.used <= before[each], f"{each!r} went beyond its quota"
        return result

    @rule(name=st.sampled_from(["a", "b"]), quota=QUOTAS, floor=FLOORS)
    def limit(self, name, quota, floor):
        used = {each: share.used for each, share in self.shares().items()}
        wish = {"dram_quota": None if quota is None else quota * PAGE, "dram_floor": floor * PAGE}
        others = sum(each.limits.dram_floor for each in self.tenants if each.name != name)
        fits = (quota is None or quota >= floor) and (not floor or others + floor * PAGE <= PAGES * PAGE)
        try:
            self.store.tenancy.limit(name, **wish)
        except ConfigError:
            assert not fits
        else:
            assert fits
        assert used == {each: share.used for each, share in self.shares().items()}, "limits alone evict nothing"

    @rule(data=st.data(), prefix=PREFIXES, commit=st.booleans())
    def save(self, data, prefix, commit):
        name, session = data.draw(st.sampled_from(self.sessions), "session")
        share = self.shares()[name]
        given = self.step(name, lambda: session.reserve(pack(prefix), start=0, count=len(prefix)))
        if given.reason == "quota":
            assert share.left < session.arena.slot_bytes or share.quota is not None
        if not given.lease:
            return
        for ordinal, ref in zip(given.blocks, given.slots, strict=True):
            session.arena.block(ref.slot)[: session.arena.block_bytes] = payload(session, prefix[: ordinal + 1])
        self.writes[given.lease] = (name, session, prefix, given)
        if commit:
            self.finish(given.lease)

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def end_write(self, data):
        self.finish(data.draw(st.sampled_from(sorted(self.writes)), "lease"))

    def finish(self, lease):
        name, session, prefix, given = self.writes.pop(lease)
        sums = [xxhash.xxh3_64_intdigest(payload(session, prefix[: ordinal + 1]).tobytes()) for ordinal in given.blocks]
        self.step(name, lambda: session.commit(lease, sums))

    @rule(data=st.data(), prefix=PREFIXES)
    def acquire(self, data, prefix):
        name, session = data.draw(st.sampled_from(self.sessions), "session")
        got = self.step(name, lambda: asyncio.run(session.acquire(pack(prefix), skip=0, deadline_s=0)))
        for ordinal, ref in enumerate(got.slots):
            block = session.arena.block(ref.slot)[: session.arena.block_bytes]
            assert (block == payload(session, prefix[: ordinal + 1])).all(), "another's bytes"
        if got.lease:
            self.met += 1
            self.reads[got.lease] = (name, session, got.slots)

    @precondition(lambda self: self.reads)
    @rule(data=st.data(), corrupt=st.integers(0, 5))
    def release(self, data, corrupt):
        lease = data.draw(st.sampled_from(sorted(self.reads)), "lease")
        name, session, _ = self.reads.pop(lease)
        self.step(name, lambda: session.release(lease, [0] if corrupt == 0 else []))

    @rule(name=st.sampled_from(["a", "b"]), often=st.integers(0, 9))
    def clear(self, name, often):
        if often == 0:
            asyncio.run(self.store.clear_tenant(name))
            held = sum(len(given.slots) * session.arena.slot_bytes for _, session, _, given in self.writes.values())
            assert self.shares()[name].used <= held + sum(
                len(slots) * session.arena.slot_bytes for _, session, slots in self.reads.values()
            )

    @invariant()
    def all_adds_up(self):
        if not hasattr(self, "store"):
            return
        self.store.check()
        for _, session, slots in self.reads.values():
            for ref in slots:
                assert session.arena.generation(ref.slot) == ref.generation, "a leased slot was freed"

    def teardown(self):
        if hasattr(self, "store"):
            for _, session in self.sessions:
                session.close()
            self.store.check()
            self.store.close()


TestTenantsMachine = TenantsMachine.TestCase
TestTenantsMachine.settings = settings(
    max_examples=12, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
