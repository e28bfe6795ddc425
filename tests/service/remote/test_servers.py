"""Nodes over Valkey and S3: they share, stay within the cap, and a server that hangs or dies costs its deadline."""

import asyncio
import os
import signal
import time
import uuid

import pytest
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Rejected, Stored
from kvterrace.kvstore.tiers.remote import OnThreads, RemoteTier, parse_remote
from kvterrace.kvstore.tiers.remote.s3 import Bucket, make_client
from kvterrace.kvstore.tiers.remote.valkey import OVERHEAD_BYTES, ValkeyObjects
from redis import Redis

from .conftest import Keeper, Moto, bench

pytestmark = pytest.mark.service

B, PAGE, Node, ask, record = bench.B, bench.PAGE, bench.Node, bench.ask, bench.record
BLOCK = 2 * PAGE + OVERHEAD_BYTES
DEADLINE_S = 0.5


def on_valkey(url, capacity_bytes=64 << 20, deadline_s=DEADLINE_S, **options) -> RemoteTier:
    clocks = {"clock": options["clock"]} if "clock" in options else {}
    return RemoteTier(
        ValkeyObjects(url, capacity_bytes, timeout_s=deadline_s, **options), deadline_s=deadline_s, **clocks
    )


def on_s3(server, address, deadline_s=DEADLINE_S, **options) -> RemoteTier:
    return RemoteTier(OnThreads(Bucket(parse_remote(address), server.client)), deadline_s=deadline_s, **options)


@pytest.fixture
def keeper():
    """A Valkey of the test's own, to be killed."""
    made = Keeper()
    yield made
    made.kill()


@pytest.fixture
def s3():
    made = Moto()
    yield made
    made.kill()


async def shared_by(first: RemoteTier, second: RemoteTier) -> None:
    a = Node(64, first)
    await a.saved(a.prompt(1, 10))
    await a.close()
    b = Node(64, second)
    got = await b.acquire(b.prompt(1, 12))
    assert (got.tiers, got.reason) == ({"remote": 10 * B}, "never_seen")
    await b.store.clear(b.session.fingerprint)
    assert len((await b.acquire(b.prompt(1, 12))).slots) == 0
    await b.close()


async def test_two_nodes_share_through_valkey(valkey):
    with Redis(port=valkey.port) as client:
        client.flushall()
        client.set("somebody's", "own")
        await shared_by(on_valkey(valkey.url, deadline_s=5), on_valkey(valkey.url, deadline_s=5))
        assert client.get("somebody's") == b"own"
        assert {name.rpartition(b":")[2] for name in client.keys("kvterrace-*")} <= {b"bytes"}, "all of it is gone"


async def test_two_nodes_share_through_a_bucket(moto):
    address = moto.bucket(f"b-{uuid.uuid4()}")
    moto.client.put_object(Bucket=parse_remote(address).bucket, Key="somebody's/own", Body=b"x")
    await shared_by(on_s3(moto, address, 5.0), on_s3(moto, address, 5.0))
    listed = moto.client.list_objects_v2(Bucket=parse_remote(address).bucket)["Contents"]
    assert [each["Key"] for each in listed] == ["somebody's/own"]


async def test_the_cap_of_valkey_holds_for_all_writers_together(valkey):
    with Redis(port=valkey.port) as client:
        client.flushall()
    tiers = [on_valkey(valkey.url, 10 * BLOCK, deadline_s=5) for _ in range(3)]
    for number in range(0, 30, 3):
        await asyncio.gather(*(tier.put([record(number + at)], deadline_s=5) for at, tier in enumerate(tiers)))
        with Redis(port=valkey.port) as client:
            kept = [name for name in client.keys("kvterrace-*") if len(name.rpartition(b"/")[2]) == 64]
            sizes = sum(client.strlen(name) for name in kept)
        assert sizes <= 10 * BLOCK
    assert sum(tier.evicted for tier in tiers) == 20
    again = on_valkey(valkey.url, 10 * BLOCK, deadline_s=5)
    again.start()
    end = time.monotonic() + 5
    while again.usage().blocks != 10:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    assert again.usage().used_bytes == 10 * BLOCK, "what is there counts from the start"
    for tier in (*tiers, again):
        await tier.close()


async def test_in_valkey_tails_leave_first_and_what_is_used_stays(valkey):
    with Redis(port=valkey.port) as client:
        client.flushall()
    now = [1e9]
    tier = on_valkey(valkey.url, 4 * BLOCK, deadline_s=5, wall=lambda: now[0])
    await tier.put([record(0), record(1), record(2), record(3)], deadline_s=5)
    now[0] += 10
    await tier.get([ask(record(0))], deadline_s=5)
    now[0] += 10
    for number in (90, 91):
        now[0] += 10
        await tier.put([record(number)], deadline_s=5)
    got = await tier.get([ask(record(number)) for number in (0, 1, 2, 3)], deadline_s=5)
    assert got == [Hit(record(0).checksum), Hit(record(1).checksum), Miss(), Miss()]
    await tier.close()


async def test_what_valkey_let_go_by_itself_is_a_miss_and_can_be_written_again(valkey):
    with Redis(port=valkey.port) as client:
        client.flushall()
        tier = on_valkey(valkey.url, deadline_s=5)
        await tier.put([record(1)], deadline_s=5)
        (name,) = [name for name in client.keys("kvterrace-*") if b"/" in name]
        assert client.ttl(name) > 0, "nothing stays for ever"
        client.delete(name)
        assert await tier.get([ask(record(1))], deadline_s=5) == [Miss()]
        assert await tier.put([record(1)], deadline_s=5) == [Stored()]
        assert tier.usage().blocks == 1
        client.delete(name)
        client.hset(name, "not", "ours")
        assert await tier.get([ask(record(1))], deadline_s=5) == [Failed("corrupt")]
        assert await tier.get([ask(record(1))], deadline_s=5) == [Miss()]
        await tier.close()


async def test_a_valkey_without_memory_left_is_full_and_still_read(valkey):
    with Redis(port=valkey.port) as client:
        client.flushall()
        tier = on_valkey(valkey.url, deadline_s=5)
        await tier.put([record(1)], deadline_s=5)
        client.config_set("maxmemory", "1mb")
        try:
            given = [await tier.put([record(number, 200_000)], deadline_s=5) for number in range(10, 14)]
            assert [Rejected("full")] in given
            assert await tier.get([ask(record(1))], deadline_s=5) == [Hit(record(1).checksum)]
        finally:
            client.config_set("maxmemory", "0")
    await tier.close()


async def trouble_costs_the_deadline(tier: RemoteTier, now: list[float], trouble, recovery) -> None:
    """A node whose prompts are in `tier` alone, while the server is in trouble, and after."""
    writer = Node(64, tier)
    await writer.saved(writer.prompt(1, 6))
    writer.session.close()
    node = Node(64, tier)
    trouble()
    for _ in range(4):
        began = time.monotonic()
        assert len((await node.acquire(node.prompt(1, 6), deadline_s=1.0)).slots) == 0
        assert time.monotonic() - began < 1.0 + 1.0, "its deadline, and what a busy machine adds"
    assert not tier.ready
    assert node.session.acquire_now(node.prompt(1, 6), skip=0, deadline_s=1.0) is not None, "not even asked"
    node.save(node.prompt(2, 4))
    recovery()
    end = time.monotonic() + 20
    while (await node.acquire(node.prompt(1, 6), deadline_s=5.0)).tiers != {"remote": 6 * B}:
        now[0] += 100.0  # of the breakers
        assert time.monotonic() < end, tier.states()
        await asyncio.sleep(0.05)
    await node.close()
    writer.store.close()


async def test_a_valkey_that_hangs(valkey, pause):
    now = [0.0]
    tier = on_valkey(valkey.url, clock=lambda: now[0])
    go_on = lambda: os.kill(valkey.pid, signal.SIGCONT)  # noqa: E731
    await trouble_costs_the_deadline(tier, now, lambda: pause(valkey.pid), go_on)


async def test_an_s3_that_hangs(moto, pause):
    now = [0.0]
    tier = on_s3(moto, moto.bucket(f"b-{uuid.uuid4()}"), clock=lambda: now[0])
    go_on = lambda: os.kill(moto.pid, signal.SIGCONT)  # noqa: E731
    await trouble_costs_the_deadline(tier, now, lambda: pause(moto.pid), go_on)


@pytest.mark.parametrize("kind", ["valkey", "s3"])
async def test_a_server_that_is_killed(kind, request):
    server = request.getfixturevalue("keeper" if kind == "valkey" else "s3")
    clock = lambda: 0.0  # noqa: E731
    tier = on_valkey(server.url, clock=clock) if kind == "valkey" else on_s3(server, server.bucket("b-1"), clock=clock)
    node = Node(64, tier)
    await node.saved(node.prompt(1, 4))
    os.kill(server.pid, signal.SIGKILL)
    for number in range(2, 7):
        began = time.monotonic()
        assert len((await node.acquire(node.prompt(number, 4), deadline_s=1.0)).slots) == 0
        assert time.monotonic() - began < 2.0
    assert not tier.ready
    node.save(node.prompt(9, 4))
    await node.store.flush(10.0)
    assert (await node.acquire(node.prompt(9, 4))).tiers == {"dram": 4 * B}, "the store itself goes on"
    assert sum(tier.counts.dropped_uploads.values()) >= 4
    await node.close()


async def test_a_bucket_that_is_not_there_or_not_ours_is_said_once_and_left_alone(moto):
    tier = on_s3(moto, moto.address("no-such-bucket"), 5.0)
    (given,) = await tier.put([record(1)], deadline_s=5)
    assert isinstance(given, Failed)
    assert await tier.put([record(2)], deadline_s=5) == [Failed("breaker")]
    assert tier.counts.failures == {("write", "denied"): 1}
    assert "NoSuchBucket" in tier.states()["write"]
    await tier.close()


def test_the_client_asks_once_and_waits_no_longer_than_told():
    config = make_client(parse_remote("s3://bucket?endpoint=http://127.0.0.1:1&region=us-east-1"), 1.5).meta.config
    assert (config.connect_timeout, config.read_timeout) == (1.5, 1.5)
    assert config.retries["total_max_attempts"] == 1
