"""What a listing says of each run, in what order, for whom, and that it holds nobody up."""

import asyncio

import numpy as np
import pytest
from kvterrace.kvstore.keeping import Selection
from kvterrace.kvstore.prefixes import Prefixes
from kvterrace.kvstore.slices import Slices
from kvterrace.proto import Retention

pytestmark = pytest.mark.unit


async def prompts(node):
    session = node.open(label="a")
    for ids in ((1, 2, 3, 4, 5), (1, 2, 6, 7, 8), (20, 21, 22, 23)):
        await node.saved(session, node.tokens(*ids))
    return session


async def test_a_run_is_told_with_all_its_tiers_and_what_hangs_below(node):
    session = await prompts(node)
    node.store._spaces[session.fingerprint].evict(2)  # the tip of the first tail
    await node.store.keeping.retain(
        Selection(session.fingerprint, tokens=node.tokens(1, 2)),
        Retention(priority=80, pinned=True),
        ["priority", "pinned"],
    )
    listing = await node.store.prefixes.list(tokens=5, sort="tokens")
    assert (listing.total, listing.partial, len(listing.prefixes)) == (4, False, 4)
    head = next(each for each in listing.prefixes if not each.first_block and each.children)
    assert (head.label, head.tenant, head.blocks, head.prefix_tokens, head.parent) == ("a", "", 2, 8, b"")
    assert (head.children, head.below_blocks, head.pinned_blocks, head.retention.priority) == (2, 6, 2, 80)
    assert head.tokens == node.tokens(1, 2)[:20]
    tails = [each for each in listing.prefixes if each.first_block]
    assert {each.parent for each in tails} == {head.key}
    assert sorted(each.tier_blocks["dram"] for each in tails) == [1, 3]
    assert [each.tier_blocks["nvme"] for each in tails] == [3, 3]
    assert {tuple(each.tier_bytes.values()) for each in tails} == {(4096, 3 * 8192), (3 * 4096, 3 * 8192)}
    (space,) = listing.spaces
    assert (space.label, space.block_tokens, space.sessions) == ("a", 4, 1)
    assert space.tier_blocks == {"dram": 10, "nvme": 12}


async def test_the_order_is_the_one_asked_for(node):
    session = await prompts(node)
    for _ in range(3):
        await node.found(session, node.tokens(20, 21, 22, 23))
    await node.found(session, node.tokens(1, 2, 6, 7, 8))

    async def order(sort, limit=50):
        found = (await node.store.prefixes.list(sort=sort, limit=limit, tokens=1)).prefixes
        return [int(np.frombuffer(each.tokens, np.int32)[0]) for each in found]

    assert (await order("hits"))[0] == 20
    assert (await order("hits"))[-1] == 3
    assert (await order("bytes"))[0] == 20
    assert set((await order("tokens"))[:2]) == {3, 6}
    assert (await order("idle"))[-1] == 3  # the only one that nobody asked for again
    assert len(await order("hits", 2)) == 2
    assert await order("hits", 2) == (await order("hits"))[:2]


async def test_short_keys_find_a_run_from_any_of_its_blocks_and_its_children(node):
    session = await prompts(node)
    (head,) = [each for each in (await node.store.prefixes.list()).prefixes if each.children]
    assert [each.key for each in (await node.store.prefixes.list(key=head.key[:4])).prefixes] == [head.key]
    first_block = node.store._spaces[session.fingerprint].index.key(
        int(node.store._spaces[session.fingerprint].index.match(node.tokens(1)).last)
    )
    (found,) = (await node.store.prefixes.list(key=first_block[:6])).prefixes
    assert (found.key, found.children, found.below_blocks) == (head.key, 2, 6)
    below = (await node.store.prefixes.list(key=head.key, children=True)).prefixes
    assert {each.parent for each in below} == {head.key}
    assert not (await node.store.prefixes.list(key=bytes(8))).prefixes


async def test_a_caller_sees_only_what_it_may(node):
    session = await prompts(node)
    other = node.open(b"weights-1", label="b")
    await node.saved(other, node.tokens(1, 2, 3))
    mine = await node.store.prefixes.list(sees=lambda fingerprint: fingerprint == other.fingerprint)
    assert {each.label for each in mine.prefixes} == {each.label for each in mine.spaces} == {"b"}
    theirs = next(iter((await node.store.prefixes.list(fingerprint=session.fingerprint)).prefixes)).key
    hidden = await node.store.prefixes.list(key=theirs, sees=lambda fingerprint: fingerprint == other.fingerprint)
    assert not hidden.prefixes


async def test_what_is_only_on_the_disk_after_a_restart_is_listed_without_a_label(node, start_node, tmp_path):
    await prompts(node)
    again = start_node(await node.killed(tmp_path / "killed"))
    listing = await again.store.prefixes.list()
    assert len(listing.prefixes) == 4
    assert {(each.label, *each.tier_blocks) for each in listing.prefixes} == {("", "nvme")}


async def test_looking_is_cut_into_slices_and_what_was_seen_is_kept_for_a_while(node):
    """On a clock that moves at each look at it: the work between two turns of the loop is bounded by it."""
    now = [0.0]

    def pace() -> float:
        now[0] += 0.0005
        return now[0]

    session = node.open()
    for first in range(50):
        node.save(session, node.tokens(first, 100 + first))
    prefixes = Prefixes(node.store._spaces, node.store._depot, pace=pace)
    turns = [0]

    async def others():
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    listing = await prefixes.list(limit=1000)
    assert (listing.total, turns[0] > 10) == (50, True)
    kept = turns[0]
    assert (await prefixes.list(limit=1)).total == 50
    assert turns[0] - kept < 5  # not looked at again
    prefixes.changed()
    node.save(session, node.tokens(900))
    assert (await prefixes.list(limit=1)).total == 51
    task.cancel()


async def test_slices_give_the_loop_back_when_their_time_is_over() -> None:
    now, turns = [0.0], [0]
    slices = Slices(lambda: now[0])

    async def other():
        turns[0] += 1

    task = asyncio.ensure_future(other())
    await slices.breathe()
    assert turns[0] == 0
    now[0] = 0.002
    await slices.breathe()
    assert turns[0] == 1
    await task


async def test_more_runs_than_can_be_looked_at_are_told_to_be_more(node, monkeypatch):
    monkeypatch.setattr("kvterrace.kvstore.prefixes.MAX_RUNS", 3)
    await prompts(node)
    listing = await node.store.prefixes.list()
    assert (len(listing.prefixes), listing.total, listing.partial) == (3, 3, True)
