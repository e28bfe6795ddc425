"""Clients and servers that die, hang and come back: nothing leaks, nothing hangs, no lease outlives its session."""

import asyncio
import dataclasses
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import pytest
from kvterrace.kvstore.service import channel
from kvterrace.kvstore.service.link import LinkLimits
from kvterrace.kvstore.sidecar import SidecarClient, SidecarTimes

pytestmark = pytest.mark.service

Connect = Callable[..., Awaitable[SidecarClient]]
QUICK = SidecarTimes(slack_s=0.3, link=LinkLimits(open_timeout_s=1.0, timeouts_to_break=3))

# A process that holds two read leases and a write lease, and never lets go.
HOLDER = """
import asyncio, sys
from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

async def main():
    layout = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=16, head_dim=8, dtype="float32")
    namespace = Namespace(weights_digest=bytes.fromhex(sys.argv[2]), layout=layout)
    client = SidecarClient(sys.argv[1], namespace, client="holder")
    await client.start()
    for _ in range(2):
        assert (await client.acquire(pack_tokens(range(64)), skip=0, deadline_s=1)).lease
    assert (await client.reserve(pack_tokens(range(1000, 1064)), start=0, count=4)).lease
    sys.stdout.write("holding\\n")
    sys.stdout.flush()
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_a_killed_client_frees_all_it_held_within_a_second(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(4))
    command = [sys.executable, "-c", HOLDER, served.address, client.namespace.weights_digest.hex()]
    holder = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"holding\n"
        held = await served.status()
        assert (held.tiers[0].leased_bytes, held.tiers[0].reserved_bytes) == (8 * 4096, 4 * 4096)
    finally:
        holder.kill()
        await holder.wait()

    async def free() -> bool:
        tier = (await served.status()).tiers[0]
        return (tier.leased_bytes, tier.reserved_bytes) == (0, 0)

    assert await tools.until(free, 5.0) < 1.0
    status = await served.status()
    assert status.check_error == ""
    assert [session.client for session in status.sessions] == ["test"]
    assert status.tiers[0].used_bytes == 4 * 4096


async def test_a_killed_server_is_a_prompt_miss_and_the_next_one_is_used(own, connect: Connect, tools) -> None:
    client = await connect(own.start().address)
    await tools.save(client, tools.tokens(4))
    held = await client.acquire(tools.tokens(4), skip=0, deadline_s=1.0)
    first_boot = client.boot_id
    own.kill()
    began = time.monotonic()
    missed = await client.acquire(tools.tokens(4), skip=1, deadline_s=1.0)
    assert (missed.reason, missed.lease, missed.first) == ("disconnected", 0, 1)
    assert (await client.reserve(tools.tokens(4), start=0, count=4)).reason == "disconnected"
    assert not await client.commit(held.lease, [0])
    assert time.monotonic() - began < 0.5

    async def detached() -> bool:
        return client.arena is None and not client.connected

    await tools.until(detached, 1.0)
    assert tools.read(held) == [tools.content(block) for block in range(4)]  # what is mapped stays readable
    own.start()

    async def attached() -> bool:
        return client.connected

    await tools.until(attached, 3.0)
    assert client.boot_id != first_boot
    assert client.arena.boot_id == client.boot_id
    found = await client.acquire(tools.tokens(4), skip=0, deadline_s=1.0)
    assert (found.slots, found.reason) == ((), "never_seen")
    assert await tools.save(client, tools.tokens(4))
    given = await client.acquire(tools.tokens(4), skip=0, deadline_s=1.0)
    assert tools.read(given) == [tools.content(block) for block in range(4)]
    # The old lease must not end one of the new session that happens to have its number.
    await client.release(held.lease)
    assert (await own.status()).sessions[0].read_leases == 1


async def test_requests_in_flight_end_when_the_server_is_killed(own, connect: Connect, tools) -> None:
    client = await connect(own.start().address)
    await tools.save(client, tools.tokens(4))
    own.signal(signal.SIGSTOP)
    asked = [asyncio.ensure_future(client.acquire(tools.tokens(4), skip=0, deadline_s=30.0)) for _ in range(5)]
    await asyncio.sleep(0.1)
    own.kill()
    answers = await asyncio.wait_for(asyncio.gather(*asked), 2.0)
    assert {answer.reason for answer in answers} == {"disconnected"}


async def test_a_stopped_server_costs_its_deadline_then_nothing_and_is_used_again(own, connect: Connect, tools) -> None:
    client = await connect(own.start().address, times=QUICK)
    await tools.save(client, tools.tokens(4))
    own.signal(signal.SIGSTOP)
    for _ in range(3):
        began = time.monotonic()
        missed = await client.acquire(tools.tokens(4), skip=0, deadline_s=0.1)
        assert missed.reason == "deadline"
        assert time.monotonic() - began < 0.1 + QUICK.slack_s + 0.5
    began = time.monotonic()
    assert (await client.acquire(tools.tokens(4), skip=0, deadline_s=0.1)).reason == "disconnected"
    assert time.monotonic() - began < 0.1
    await asyncio.sleep(1.0)  # dials meanwhile reach a kernel that takes connections for a process that does not
    assert not client.connected
    own.signal(signal.SIGCONT)

    async def found() -> bool:
        return len((await client.acquire(tools.tokens(4), skip=0, deadline_s=0.5)).slots) == 4

    await tools.until(found, 8.0)
    status = await own.status()
    assert (len(status.sessions), status.check_error) == (1, "")


@pytest.mark.parametrize("how", ["timed out", "cancelled"])
async def test_the_lease_of_a_caller_that_left_is_given_back(own, connect: Connect, tools, how: str) -> None:
    client = await connect(own.start().address, times=QUICK)
    await tools.save(client, tools.tokens(4))
    own.signal(signal.SIGSTOP)
    if how == "timed out":
        assert (await client.acquire(tools.tokens(4), skip=0, deadline_s=0.0)).reason == "deadline"
        assert (await client.reserve(tools.tokens(8), start=4, count=4)).reason == "deadline"
    else:
        asked = [
            asyncio.ensure_future(client.acquire(tools.tokens(4), skip=0, deadline_s=9.0)),
            asyncio.ensure_future(client.reserve(tools.tokens(8), start=4, count=4)),
        ]
        await asyncio.sleep(0.05)
        for call in asked:
            call.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    own.signal(signal.SIGCONT)

    async def free() -> bool:
        status = await own.status()
        # The late acquire has been counted: it was granted, and given back.
        return status.counters.acquires == 1 and status.tiers[0].leased_bytes + status.tiers[0].reserved_bytes == 0

    await tools.until(free, 3.0)
    assert client.connected
    assert len((await client.acquire(tools.tokens(4), skip=0, deadline_s=1.0)).slots) == 4


async def test_start_without_a_sidecar_returns_at_once_and_connects_later(own, connect: Connect, tools) -> None:
    began = time.monotonic()
    client = await connect(own.address)
    assert time.monotonic() - began < 0.5
    assert (await client.acquire(tools.tokens(1), skip=0, deadline_s=1.0)).reason == "disconnected"
    own.start()

    async def connected() -> bool:
        return client.connected

    await tools.until(connected, 3.0)
    assert await tools.save(client, tools.tokens(1))


async def test_a_refusal_after_a_reconnect_is_kept_said_once_and_ends_with_its_cause(
    own, connect: Connect, namespace, tools, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SidecarTimes(retry_s=(4.0, 4.0), refused_retry_s=0.1)
    client = await connect(own.start().address, times=slow)
    own.kill()
    own.start()
    wider = dataclasses.replace(namespace, layout=dataclasses.replace(namespace.layout, kv_heads=4))
    other = await connect(own.address, wider)
    assert other.connected

    async def refused() -> bool:
        return client.refused is not None

    await tools.until(refused, 8.0)
    await asyncio.sleep(0.5)  # several dials
    assert client.refused is not None
    assert (client.refused.field, client.refused.ours, client.refused.theirs) == ("kv_heads", "4", "2")
    assert (await client.acquire(tools.tokens(1), skip=0, deadline_s=1.0)).reason == "disconnected"
    assert sum("refuses" in record.message for record in caplog.records) == 1
    await other.close()

    async def connected() -> bool:
        return client.connected

    await tools.until(connected, 3.0)
    assert client.refused is None


async def test_close_is_idempotent_and_ends_the_session_at_once(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(2))
    assert (await client.acquire(tools.tokens(2), skip=0, deadline_s=1.0)).lease
    began = time.monotonic()
    await client.close()
    await client.close()
    assert time.monotonic() - began < 0.5
    assert (await client.acquire(tools.tokens(2), skip=0, deadline_s=1.0)).reason == "disconnected"

    async def ended() -> bool:
        return not (await served.status()).sessions

    assert await tools.until(ended, 1.0) < 0.5


async def test_a_session_without_requests_is_kept_however_often_it_is_probed(
    served, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = {**dict(channel._CLIENT_OPTIONS), "grpc.keepalive_time_ms": 1000}
    monkeypatch.setattr(channel, "_CLIENT_OPTIONS", list(often.items()))
    client = await connect(served.address)
    boot = client.boot_id
    for _ in range(80):
        await asyncio.sleep(0.1)
        assert client.connected
    assert client.boot_id == boot
