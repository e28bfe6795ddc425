"""PrefixIndex against a plain model: random operations, with everything recounted and compared after each."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvterrace.radix import Adaptive, EvictionPolicy, Gdsf, Lru, PrefixIndex, Retained, S3Fifo, block_keys, pack_tokens

pytestmark = pytest.mark.unit

SEED = bytes(32)
B = 2
# Few distinct tokens and extras, so that prompts share heads, diverge inside runs and extend each other.
prompts = st.lists(st.integers(0, 1), max_size=8 * B + 1)
pictures = st.dictionaries(st.integers(0, 7), st.sampled_from([b"", b"cat", b"dog"]), max_size=2)
POLICIES: list[Callable[[], EvictionPolicy]] = [
    Lru,
    S3Fifo,
    Adaptive,
    lambda: Gdsf(lambda ordinal: 1.0 + ordinal),
    lambda: Retained(Lru(), 0.3),
    lambda: Retained(S3Fifo(), 1.0),
    lambda: Retained(Adaptive(), 0.0),
]

Path = tuple[tuple[bytes, bytes], ...]


def identity(tokens: bytes, extras: dict[int, bytes]) -> Path:
    """What makes each block of the prompt itself."""
    size = 4 * B
    return tuple((tokens[i * size : (i + 1) * size], extras.get(i, b"")) for i in range(len(tokens) // size))


class Machine(RuleBasedStateMachine):
    """The model keeps one dict entry a block and a list of leases; all it knows of trees is `startswith`."""

    @initialize(policy=st.sampled_from(POLICIES), hash_name=st.sampled_from(["sha256", "xxh3-128"]))
    def start(self, policy: Callable[[], EvictionPolicy], hash_name: str) -> None:
        self.now = 0.0
        self.lru, self.hash_name = policy is Lru, hash_name
        self.index = PrefixIndex(SEED, block_tokens=B, policy=policy(), hash_name=hash_name, clock=lambda: self.now)
        self.index.column("colour", "i4", 7)
        self.live: dict[Path, int] = {}
        self.facts: dict[int, list] = {}  # block -> [value, hits, last_use, inserted_at]
        self.retention: dict[int, tuple] = {}  # of blocks that retain named
        self.leases: list[tuple[int, frozenset[int]]] = []  # deepest block, all that its holder reads
        self.value = 0

    # -- what the model says --

    def known(self, path: Path) -> list[int]:
        return [self.live[path[:n]] for n in range(1, len(path) + 1) if path[:n] in self.live]

    def read(self) -> set[int]:
        return set().union(*(blocks for _, blocks in self.leases))

    def orphans(self) -> set[int]:
        return self.read() - set(self.live.values())

    def tips(self) -> dict[int, Path]:
        inner = {path[:-1] for path in self.live}
        return {block: path for path, block in self.live.items() if path not in inner and block not in self.read()}

    def tick(self) -> None:
        self.now += 1.0

    # -- operations --

    @rule(ids=prompts, extras=pictures)
    def insert(self, ids: list[int], extras: dict[int, bytes]) -> None:
        self.tick()
        tokens = pack_tokens(ids)
        path = identity(tokens, extras)
        known = self.known(path)
        values = range(self.value, self.value + len(path))
        self.value += len(path)
        done = self.index.insert(tokens, values, extras=extras)
        blocks = done.blocks.tolist()
        assert done.existing == len(known)
        assert blocks[: len(known)] == known
        new = blocks[len(known) :]
        assert not set(new) & (set(self.live.values()) | self.orphans())
        for n, block in enumerate(new, start=len(known)):
            self.live[path[: n + 1]] = block
            self.facts[block] = [values[n], 0, self.now, self.now]
            assert self.index.col("colour")[block] == 7
            self.index.col("colour")[block] = 1000 + block

    @rule(ids=prompts, extras=pictures, skip=st.integers(0, 8))
    def insert_from_the_middle(self, ids: list[int], extras: dict[int, bytes], skip: int) -> None:
        tokens = pack_tokens(ids)
        path = identity(tokens, extras)
        skip = min(skip, len(path))
        known = self.known(path)
        if skip > len(known):
            with pytest.raises(ValueError, match="no parent"):
                self.index.insert(tokens, range(len(path) - skip), skip=skip, extras=extras)
            return
        self.tick()
        blocks = self.index.insert(tokens, range(skip, len(path)), skip=skip, extras=extras).blocks.tolist()
        for n in range(len(known), len(path)):
            self.live[path[: n + 1]] = blocks[n]
            self.facts[blocks[n]] = [n, 0, self.now, self.now]
            self.index.col("colour")[blocks[n]] = 1000 + blocks[n]

    @rule(ids=prompts, extras=pictures, limit=st.none() | st.integers(0, 9), touch=st.booleans())
    def match(self, ids: list[int], extras: dict[int, bytes], limit: int | None, touch: bool) -> None:
        self.tick()
        tokens = pack_tokens(ids)
        found = self.index.match(tokens, limit=limit, extras=extras)
        assert found.blocks.tolist() == self.known(identity(tokens, extras)[:limit])
        assert found.tokens == len(found) * B
        if touch:
            self.index.touch(found.blocks)
            for block in found.blocks.tolist():
                self.facts[block][1] += 1
                self.facts[block][2] = self.now

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.live)))
        self.index.lease(self.live[path])
        self.leases.append((self.live[path], frozenset(self.known(path))))

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        priority=st.none() | st.integers(0, 100),
        ttl_s=st.none() | st.integers(0, 9),
        pinned=st.none() | st.booleans(),
    )
    def retain(self, data: st.DataObject, priority: int | None, ttl_s: int | None, pinned: bool | None) -> None:
        self.tick()
        path = data.draw(st.sampled_from(sorted(self.live)))
        blocks = self.known(path)[data.draw(st.integers(0, len(path) - 1)) :]
        self.index.retain(blocks, priority=priority, ttl_s=ttl_s, pinned=pinned)
        for block in blocks:
            asked = (priority, ttl_s, pinned)
            had = self.retention.get(block, (50, 0, False))
            self.retention[block] = tuple(h if a is None else a for a, h in zip(asked, had, strict=True))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        before = self.orphans()
        block, _ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        freed = self.index.release(block)
        assert {fact.block for fact in freed} == before - self.orphans()
        for fact in freed:
            assert list(fact[1:5]) == self.facts.pop(fact.block)
            self.retention.pop(fact.block, None)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), in_use=st.booleans())
    def remove(self, data: st.DataObject, in_use: bool) -> None:
        read = self.read()
        in_use_now = sorted(path for path, block in self.live.items() if block in read)
        top = data.draw(st.sampled_from((in_use and in_use_now) or sorted(self.live)))
        gone = {path: block for path, block in self.live.items() if path[: len(top)] == top}
        removed = self.index.remove(self.live[top])
        assert {fact.block for fact in removed} == set(gone.values())
        self.live = {path: block for path, block in self.live.items() if path not in gone}
        self.settle(removed)

    @rule(n=st.integers(0, 12))
    def evict(self, n: int) -> None:
        free = len(set(self.live.values()) - self.read())
        coldest = self.index.coldest()
        victims = self.index.evict(n)
        assert len(victims) == min(n, free)
        if victims:
            assert victims[0].last_use == coldest
        for fact in victims:
            tips = self.tips()
            assert fact.block in tips, "a victim was leased, or above a live block"
            if self.lru:
                assert fact.last_use == min(self.facts[block][2] for block in tips)
            del self.live[tips[fact.block]]
        self.settle(victims)

    def settle(self, removed: list) -> None:
        orphans = self.orphans()
        for fact in removed:
            assert fact.orphan == (fact.block in orphans)
            assert list(fact[1:5]) == self.facts[fact.block]
            if not fact.orphan:
                del self.facts[fact.block]
                self.retention.pop(fact.block, None)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def ask_for_a_key(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.live)))
        extras = {n: extra for n, (_, extra) in enumerate(path)}
        keys = block_keys(SEED, b"".join(block for block, _ in path), B, hash_name=self.hash_name, extras=extras)
        assert self.index.key(self.live[path]) == keys[-1]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release_too_often(self, data: st.DataObject) -> None:
        held = {block for block, _ in self.leases}
        free = sorted(set(self.live.values()) - held)
        if free:
            with pytest.raises(ValueError, match="not leased"):
                self.index.release(data.draw(st.sampled_from(free)))

    # -- what must hold after each --

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "index"):
            return
        index = self.index
        index.check()
        assert len(index) == len(self.live)
        assert index.evictable == len(set(self.live.values()) - self.read())
        assert index.orphans == len(self.orphans())
        assert (index.coldest() is None) == (index.evictable == 0)
        asked = [self.retention.get(block, (50, 0, False)) for block in self.live.values()]
        assert list(zip(*index.retention(list(self.live.values())), strict=True)) == asked
        assert index.pinned == sum(pinned for _, _, pinned in asked)
        seen = set[int]()
        for block in index.iterate():
            parent = index.parent(block)
            assert parent is None or parent in seen, "a child came before its parent"
            seen.add(block)
        assert seen == set(self.live.values())
        for path, block in self.live.items():
            assert path[:-1] in self.live or len(path) == 1, "not closed under prefixes"
            assert index.parent(block) == self.live.get(path[:-1])
            assert (index.tokens_of(block), index.extras_of(block)) == path[-1]
            assert index.path(block).tolist() == self.known(path)
            facts = [index.values([block])[0], index.col("hits")[block], index.col("last_use")[block]]
            assert facts == self.facts[block][:3]
            assert index.col("colour")[block] == 1000 + block


Machine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPrefixIndex = Machine.TestCase
