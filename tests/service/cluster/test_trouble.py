"""What a node does while Valkey is dead, hung, poisoned or refuses it, and after."""

import asyncio
import os
import random
import signal
import time

import pytest
from kvterrace.kvstore.cluster import ClusterStatus, Member
from kvterrace.kvstore.errors import ConfigError

from .conftest import SPACE, ask, finds, keys_of, say, until

pytestmark = pytest.mark.service


def mark_key(keys: list[bytes], ordinal: int) -> bytes:
    return b"kvterrace:test:mark:{%s}:%s" % (SPACE.hex().encode(), keys[ordinal])


async def test_killed_and_started_again_empty_it_learns_everything_anew(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys, later = keys_of("p", 40), keys_of("later", 16)
    await say(a, keys)
    town.kill()
    assert await ask(b, keys, deadline_s=0.5) == []
    await until(lambda: not (a.status().connected or b.status().connected))
    began = time.perf_counter()
    assert await ask(b, keys, deadline_s=0.5) == []
    assert time.perf_counter() - began < 0.05, "nobody waits for what is known to be dead"
    assert not b.available
    assert b.tier("a") == a.member, "who was there still is"
    a.watcher.stored("dram", SPACE, 0, later, b"", b"")
    assert "cannot be reached" in a.status().last_error
    town.start()
    await until(lambda: a.status().joined and not a.status().backlog and a.counters.full_announces["joined"] == 2)
    await town.meet(a, b)
    await finds(b, keys, [("a", 32)])
    await finds(b, later, [("a", 16)])
    assert a.counters.lost == 1


async def test_hung_it_costs_a_deadline_a_few_times_and_then_nothing(town):
    a, b = await town.node("a", timeout_s=0.3), await town.node("b", timeout_s=0.3)
    await town.meet(a, b)
    keys = keys_of("p", 16)
    await say(a, keys)
    os.kill(town.pid, signal.SIGSTOP)
    try:
        took = []
        for _ in range(20):
            began = time.perf_counter()
            assert await ask(b, keys, deadline_s=0.05) == []
            took.append(time.perf_counter() - began)
    finally:
        os.kill(town.pid, signal.SIGCONT)
    assert max(took) < 0.25
    assert sum(each > 0.04 for each in took) <= 3
    assert 1 <= b.counters.lookups["deadline"] <= 3
    await until(lambda: a.status().connected and b.status().connected)
    await finds(b, keys, [("a", 16)])


async def test_answers_after_a_missed_deadline_belong_to_their_own_questions(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    prompts = {length: keys_of(length, 64) for length in (16, 32, 48, 64)}
    for length, keys in prompts.items():
        await say(a, keys[:length])
    for turn in range(200):
        length = 16 * (1 + turn % 4)
        found = await ask(b, prompts[length], deadline_s=0.0004 if turn % 3 else 1.0)
        assert found in ([], [("a", length)])
    await until(lambda: b.status().connected)
    assert await ask(b, prompts[48]) == [("a", 48)]


async def test_emptied_behind_everybodys_back_it_is_filled_again(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("p", 16)
    await say(a, keys)
    async with town.client() as client:
        await client.flushall()
        await client.script_flush()
    await until(lambda: a.counters.full_announces["joined"] == 2 and a.counters.announced == 10)
    await town.meet(a, b)
    assert await ask(b, keys) == [("a", 16)]


async def test_started_again_with_an_old_copy_it_gets_what_is_not_in_it(town, tmp_path):
    town.kill()
    town.folder = tmp_path
    town.start()
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    old, keys = keys_of("old", 16), keys_of("p", 32)
    await say(a, old)
    async with town.client() as client:
        await client.save()
    await say(a, keys)
    town.kill()
    town.start()
    async with town.client() as client:
        assert await client.exists("kvterrace:{test}:node:a")
        assert not await client.exists(mark_key(keys, 31))
    await finds(b, keys, [("a", 32)])
    await finds(b, old, [("a", 16)])
    assert a.counters.full_announces["returned"] == 1


async def test_deaf_for_a_while_it_is_not_told_everything_again(town):
    a = await town.node("a", timeout_s=0.3)
    os.kill(town.pid, signal.SIGSTOP)
    await until(lambda: not a.status().connected)
    os.kill(town.pid, signal.SIGCONT)
    await until(lambda: a.status().connected)
    assert a.counters.full_announces == {"joined": 1}


async def test_a_node_whose_name_was_taken_meanwhile_stays_out_until_it_is_free(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("p", 16)
    await say(b, keys)
    other = Member("a", 7, "")
    async with town.client() as client:
        await client.set("kvterrace:{test}:node:a", other.to_json(), px=3000)
        await until(lambda: not a.status().joined)
        assert "another live process is node 'a'" in a.status().last_error
        assert await ask(a, keys) == [("b", 16)], "it may still read"
        a.watcher.stored("dram", SPACE, 0, keys_of("q", 16), b"", b"")
        assert a.counters.announced == 0
        assert b'"0000000000000007"' in await client.get("kvterrace:{test}:node:a")
    await until(lambda: a.status().joined)
    await finds(b, keys_of("q", 16), [("a", 16)])


async def test_those_who_have_not_said_it_for_long_do_not_fill_an_entry(town):
    a = await town.node("a")
    keys = keys_of("p", 1)
    long_ago = b"%08x" % int(time.time() - 3600)
    async with town.client() as client:
        gone = {b"gone%d" % i: b"%016x" % i + long_ago for i in range(100)}
        await client.hset(mark_key(keys, 0), mapping=gone | {b"b": b"f" * 16 + b"%08x" % int(time.time())})
        await say(a, keys)
        assert set(await client.hkeys(mark_key(keys, 0))) == {b"a", b"b"}


async def test_started_before_valkey_a_node_joins_when_it_is_there(town):
    town.kill()
    a = await town.node("a")
    assert not a.status().connected
    keys = keys_of("p", 16)
    a.watcher.stored("dram", SPACE, 0, keys, b"", b"")
    assert await ask(a, keys) == []
    town.start()
    await until(lambda: a.status().joined)
    b = await town.node("b")
    await town.meet(a, b)
    await until(lambda: not a.status().backlog)
    assert await ask(b, keys) == [("a", 16)]


async def test_a_wrong_password_stops_the_start_and_is_not_repeated_to_anyone(town):
    async with town.client() as client:
        await client.config_set("requirepass", "s3cret")
    town.password = "s3cret"
    a = await town.node("a")
    assert a.status().connected
    wrong = town.make("b", url=f"redis://:wr0ng@127.0.0.1:{town.port}")
    with pytest.raises(ConfigError, match="refuses") as raised:
        await wrong.start()
    assert "wr0ng" not in str(raised.value)
    assert "s3cret" not in a.status().address
    with pytest.raises(ConfigError, match="refuses"):
        await town.node("c", url=f"redis://127.0.0.1:{town.port}")


async def test_poison_is_counted_and_believed_by_nobody(town):
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)
    keys = keys_of("p", 64)
    await say(a, keys[:32])
    live = b"%016x" % a.member.epoch
    soon = b"%08x" % int(time.time())
    async with town.client() as client:
        poison = {
            b"a": b"short",
            b"n" * 1000: live + soon,
            b"\xff\x00": live + soon,
            b"stranger": live + soon,
            b"old": b"0" * 16 + soon,
        }
        await client.hset(mark_key(keys, 47), mapping=poison)
        await client.set(mark_key(keys, 63), b"no hash")
        await client.set("kvterrace:{test}:node:x", b"{")
        await client.set("kvterrace:{test}:node:y", a.member.to_json())
        await client.set("kvterrace:{test}:node:z", b"[" * 100_000)
        await client.hset("kvterrace:{test}:node:w", "f", "v")
        await client.zadd("kvterrace:{test}:nodes", {name: time.time() * 1e3 + 60e3 for name in "xyzw"})
        await client.incr("kvterrace:{test}:version")
    await until(lambda: b.counters.ignored["member"] >= 3)
    assert {member.node for member in b.members()} == {"a", "b"}
    assert await ask(b, keys) == [("a", 32)]
    assert b.counters.ignored["mark"] >= 2
    assert b.counters.ignored["answer"] >= 1
    await say(a, keys[32:], first=32)
    assert await ask(b, keys) == [("a", 64)], "what was no entry has become one"


async def test_keys_of_other_types_do_not_keep_nodes_out(town):
    async with town.client() as client:
        await client.set("kvterrace:{test}:nodes", "x")
        await client.hset("kvterrace:{test}:version", "x", "y")
        await client.hset("kvterrace:{test}:node:a", "x", "y")
    a, b = await town.node("a"), await town.node("b")
    await town.meet(a, b)


async def test_a_stop_while_valkey_is_dead_does_not_wait_for_it(town):
    a = await town.node("a")
    town.kill()
    await until(lambda: not a.status().connected)
    began = time.perf_counter()
    await a.stop()
    await a.stop()
    assert time.perf_counter() - began < 0.5
    assert isinstance(a.status(), ClusterStatus)


async def test_a_stop_in_the_middle_of_anything_ends(town):
    rng = random.Random(1)
    for turn in range(40):
        a = await town.node(f"n{turn}")
        for i in range(rng.randrange(200)):
            await asyncio.sleep(0)
            a.watcher.stored("dram", SPACE, 0, keys_of((turn, i), 1), b"", b"")
        await asyncio.sleep(rng.uniform(0.04, 0.07))
        async with asyncio.timeout(5.0):
            await a.stop()
