"""Nodes find out through a real Valkey who has what, and who is there."""

import asyncio

import pytest
from kvterrace.kvstore.cluster import NodeTaken

from .conftest import SPACE, ask, keys_of, say, until

pytestmark = pytest.mark.service


async def test_each_finds_what_the_other_announced_and_nothing_of_its_own(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    mine, other = keys_of("a", 40), keys_of("b", 5)
    await say(a, mine)
    await say(b, other)
    assert await ask(b, mine) == [("a", 32)], "the deepest mark of 40 blocks"
    assert await ask(a, other) == [("b", 4)]
    assert await ask(a, mine) == []
    assert await ask(b, keys_of("nobody", 40)) == []
    assert await ask(b, mine, space=b"s" * 32) == [], "another namespace"
    assert b.tier("a") == a.member
    assert b.tier("b") is None
    assert b.tier("c") is None


async def test_only_what_lies_behind_the_known_blocks_counts(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("long", 100)
    await say(a, keys[:64])
    assert await ask(b, keys[20:], 20) == [("a", 64)]
    assert await ask(b, keys[64:], 64) == []
    assert await ask(b, keys[17:30], 17) == [], "no mark among them"
    assert b.counters.lookups["skipped"] == 1


async def test_the_node_with_most_comes_first_and_a_draining_one_after_its_equals(town):
    a, b, c, d = [await town.node(name) for name in "abcd"]
    keys = keys_of("shared", 64)
    a.set_draining(True)
    await town.meet(a, b, c, d)
    await say(a, keys[:48])
    await say(b, keys[:32])
    await say(c, keys[:48])
    await until(lambda: any(member.draining for member in d.members()))
    assert await ask(d, keys) == [("c", 48), ("a", 48), ("b", 32)]


async def test_the_longest_prompt_is_found_at_any_length(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    for length in (1, 2, 3, 8, 15, 16, 17, 4096, 8191, 8192):
        keys = keys_of(length, 8192)
        await say(a, keys[:length])
        blocks = next(mark for mark in (length // 16 * 16, 8, 4, 2, 1) if 0 < mark <= length)
        assert await ask(b, keys) == [("a", blocks)]


async def test_keys_of_sixteen_bytes_are_found_too(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("short", 20, size=16)
    await say(a, keys)
    assert await ask(b, keys) == [("a", 16)]


async def test_a_mark_is_withdrawn_when_the_last_tier_has_let_it_go(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("p", 32)
    a.watcher.stored("nvme", SPACE, 0, keys, b"", b"")
    await say(a, keys)
    a.watcher.removed("dram", SPACE, keys)
    await asyncio.sleep(0.3)
    assert await ask(b, keys) == [("a", 32)]
    a.watcher.removed("nvme", SPACE, keys[16:])
    await until(lambda: a.counters.withdrawn)
    assert await ask(b, keys) == [("a", 16)]
    a.watcher.cleared("nvme", SPACE)
    await until(lambda: a.counters.withdrawn == 6)
    assert await ask(b, keys) == []
    assert len(await town.names()) == 4, "two nodes, their list and its version"
    assert a.status().marks == 0


async def test_a_node_that_comes_back_is_not_believed_for_what_it_had(town):
    b = await town.node("b")
    keys = keys_of("p", 32)
    old = await town.node("a", epoch=1)
    await town.meet(old, b)
    await say(old, keys)
    assert await ask(b, keys) == [("a", 32)]
    await old.stop()
    await until(lambda: len(b.members()) == 1)
    assert await ask(b, keys) == []
    new = await town.node("a", epoch=2)
    await town.meet(new, b)
    assert await ask(b, keys) == [], "the entry is there, its process is not"
    await say(new, keys[:16])
    assert await ask(b, keys) == [("a", 16)]


async def test_a_node_that_dies_is_gone_when_its_lease_is_over(town):
    a, b = await town.node("a", lease_s=2.0), await town.node("b")
    await town.meet(a, b)
    seen = []
    b.on_members(lambda members: seen.append({member.node for member in members}))
    for task in a._tasks:
        task.cancel()
    await until(lambda: len(b.members()) == 1, within_s=6.0)
    assert seen == [{"b"}]
    assert not b.available


async def test_the_later_of_two_processes_of_one_node_does_not_start(town):
    first = await town.node("a")
    with pytest.raises(NodeTaken, match="another live process is node 'a'"):
        await town.node("a")
    await asyncio.sleep(1.2)
    assert first.status().joined
    assert [member.epoch for member in first.members()] == [first.member.epoch]


async def test_a_node_that_crashed_may_start_again_after_its_lease(town):
    crashed = await town.node("a", lease_s=1.5)
    for task in crashed._tasks:
        task.cancel()
    again = await town.node("a", lease_s=1.5)
    assert again.status().joined
    assert [member.epoch for member in again.members()] == [again.member.epoch]


async def test_clusters_of_two_names_share_a_valkey_and_nothing_else(town):
    a, b = await town.node("a", name="one"), await town.node("b", name="two")
    keys = keys_of("p", 16)
    await say(a, keys)
    await asyncio.sleep(1.2)
    assert [member.node for member in b.members()] == ["b"]
    assert await ask(b, keys) == []


async def test_an_entry_expires_unless_it_is_announced_again(town):
    a, b = await town.node("a", entry_ttl_s=3), await town.node("b", entry_ttl_s=3)
    await town.meet(a, b)
    keys = keys_of("p", 16)
    await say(a, keys)
    await asyncio.sleep(5.0)
    assert await ask(b, keys) == [("a", 16)], "said again each third of the time"
    assert a.counters.full_announces["refresh"] >= 2
    a._tasks[1].cancel()
    await asyncio.sleep(4.5)
    assert await ask(b, keys) == []
    assert not [name for name in await town.names() if b"mark" in name]


async def test_what_a_node_has_not_said_for_long_is_not_kept_alive_by_others(town):
    a, b, c = [await town.node(name, entry_ttl_s=3) for name in "abc"]
    await town.meet(a, b, c)
    keys = keys_of("p", 16)
    await say(a, keys)
    await say(b, keys)
    a._tasks[1].cancel()
    await asyncio.sleep(4.5)
    assert await ask(c, keys) == [("b", 16)]
