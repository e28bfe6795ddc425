"""Stores that know nothing of each other, over one directory: what one computed, another serves."""

import asyncio

import pytest
import xxhash
from kvterrace.kvstore.elsewhere import Holder
from kvterrace.kvstore.keeping import Selection
from kvterrace.kvstore.tiers import Hit, Miss, NullTier

from .conftest import CAPACITY_BYTES, LAYOUT, PAGE, B, Node

pytestmark = pytest.mark.unit


async def test_a_node_serves_what_another_computed_after_that_one_is_gone(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 10))
    assert a.counters.demoted_blocks == {"remote": 10}
    await a.close()
    b = nodes()
    got = await b.acquire(b.prompt(1, 12))
    assert (got.tiers, got.reason) == ({"remote": 10 * B}, "never_seen")
    assert b.counters.hit_tokens == {"remote": 10 * B}
    assert b.counters.read_bytes == {"remote": 10 * LAYOUT.block_bytes}
    assert (await b.acquire(b.prompt(1, 10))).tiers == {"dram": 10 * B}


async def test_a_restarted_node_finds_its_own_again_and_writes_nothing_twice(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 6))
    await a.close()
    again = nodes()
    assert (await again.acquire(again.prompt(1, 6))).tiers == {"remote": 6 * B}
    again.save(again.prompt(1, 8))
    assert await again.store.flush(10.0) == 0
    assert again.tier.counts.uploaded_blocks == 2, "only what was not there"
    assert again.tier.counts.present_blocks == 0, "nor was it asked for what had just come from there"


async def test_two_requests_load_once(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 8))
    b = nodes()
    first, second = await asyncio.gather(b.acquire(b.prompt(1, 8)), b.acquire(b.prompt(1, 8)))
    assert first.tiers == second.tiers == {"remote": 8 * B}
    assert b.counters.read_bytes == {"remote": 8 * LAYOUT.block_bytes}


async def test_what_is_at_hand_is_not_fetched(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 8))
    b = nodes()
    b.save(b.prompt(1, 3))
    got = await b.acquire(b.prompt(1, 8))
    assert got.tiers == {"dram": 3 * B, "remote": 5 * B}


async def test_a_hole_costs_what_is_behind_it_and_no_wrong_byte(nodes, shared):
    a = nodes()
    await a.saved(a.prompt(1, 8))
    keys = a.session._space.index.known_keys(a.session._space.index.match(a.prompt(1, 8)).blocks)
    (path,) = shared.rglob(keys[4].hex())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    b = nodes()
    got = await b.acquire(b.prompt(1, 8))
    assert (got.tiers, got.reason) == ({"remote": 4 * B}, "corrupt")
    assert b.counters.failed_loads["corrupt"] == 1
    assert b.tier.counts.bad_objects == {"flipped": 1}
    assert not path.exists()
    await b.saved(b.prompt(1, 8))
    assert path.exists(), "it is put right by who computes it again"


class Peer(NullTier):
    """Another node, which has the first `has` blocks of whatever it is asked for. known: as far as others know."""

    available = True

    def __init__(self, has: int, known: int | None = None) -> None:
        super().__init__("peer")
        self.has, self.known = has, has if known is None else known

    async def find(self, fingerprint, keys, first, *, deadline_s):
        return [Holder("a", self.known)] if self.known > first else []

    def tier(self, node):
        return self

    async def get(self, wanted, *, deadline_s):
        for each in wanted:
            each.into[: LAYOUT.block_bytes] = Node.content(each.prompt, each.ordinal)
        block = lambda each: each.into[: LAYOUT.block_bytes].tobytes()  # noqa: E731
        return [Hit(xxhash.xxh3_64_intdigest(block(each))) if each.ordinal < self.has else Miss() for each in wanted]


async def test_other_nodes_are_asked_first_and_the_store_for_the_rest(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 40))
    b = nodes(128)
    b.store.join(Peer(3))
    got = await b.acquire(b.prompt(1, 40))
    assert (got.tiers, got.reason) == ({"peer": 3 * B, "remote": 37 * B}, "")


async def test_the_last_few_blocks_are_asked_of_the_node_that_has_those_above(nodes):
    b = nodes()
    b.store.join(Peer(30, known=24))
    got = await b.acquire(b.prompt(1, 30))
    assert got.tiers == {"peer": 30 * B}
    assert not b.tier.counts.lookups


async def test_what_is_slower_to_load_than_to_compute_is_not_loaded(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 8))
    b = nodes()
    for _ in range(8):
        b.session.observe([(0, 8 * B, 0.02)])
        b.store._io.observe("remote", LAYOUT.block_bytes, 1.0, "read")
    got = await b.acquire(b.prompt(1, 8))
    assert (len(got.slots), got.reason) == (0, "slower_to_load")


async def test_a_question_that_takes_as_long_as_computing_is_not_asked(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 8))
    b = nodes()
    for _ in range(8):
        b.session.observe([(0, 8 * B, 0.02)])
    b.store.remote.remote.finder.ask_s = 0.01
    assert len((await b.acquire(b.prompt(1, 8))).slots) == 0
    assert not b.tier.counts.lookups
    for _ in range(200):
        if (await b.acquire(b.prompt(1, 8))).slots:
            break
    assert b.tier.counts.lookups == {"found": 1}, "it is tried again sometime"


async def test_a_prompt_that_nobody_has_costs_one_question_for_a_while(nodes):
    b = nodes()
    for _ in range(3):
        assert len((await b.acquire(b.prompt(7, 8))).slots) == 0
    assert b.tier.counts.lookups == {"nobody": 1, "remembered": 2}


async def test_a_namespace_that_is_cleared_by_name_is_cleared_there_too(nodes, shared):
    a, b = nodes(), nodes()
    await a.saved(a.prompt(1, 4))
    assert await b.store.clear() == 0
    assert (await b.acquire(b.prompt(1, 4))).tiers == {"remote": 4 * B}, (
        "clearing all that is here leaves what others use"
    )
    await a.store.clear(a.session.fingerprint)
    assert not [path for path in shared.rglob("*") if path.is_file()]


async def test_a_prefix_that_is_cleared_is_cleared_there_too_whoever_wrote_it(nodes, shared):
    a, b = nodes(), nodes()
    await a.saved(a.prompt(1, 6))
    await a.saved(a.prompt(2, 3))
    which = Selection(b.session.fingerprint, tokens=b.prompt(1, 4))  # b has none of it here
    assert (await b.store.keeping.clear(which)).blocks == 0
    assert len((await b.acquire(b.prompt(1, 6))).slots) == 3
    assert (await b.acquire(b.prompt(2, 3))).tiers == {"remote": 3 * B}
    assert (await a.store.keeping.clear(which)).blocks == 3
    assert len([path for path in shared.rglob("*") if path.is_file()]) == 3 + 3, "what a knew of below it went, too"


async def test_the_line_of_the_tier_in_status(nodes):
    a = nodes()
    await a.saved(a.prompt(1, 4))
    line = a.store.stats().tiers[-1]
    assert (line.name, line.blocks, line.used_bytes, line.reserved_bytes) == ("remote", 4, 4 * 2 * PAGE, 0)
    assert line.capacity_bytes == CAPACITY_BYTES
