"""A holder in a process of its own, killed or stopped while it sends."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from kvterrace.kvstore.peer.bulk_client import BulkClient
from kvterrace.kvstore.peer.client import PeerClient
from kvterrace.kvstore.peer.counts import FetchCounts
from kvterrace.kvstore.peer.tier import PeerTier
from kvterrace.kvstore.tiers import Failed, Hit

pytestmark = pytest.mark.service

BLOCK_BYTES = 4_000_000
BLOCKS = 24


@pytest.fixture
async def holder(peer_bench):
    """Its process and its address. It holds prompt 1."""
    script = Path(__file__).with_name("holder.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(BLOCKS), str(BLOCK_BYTES), stdout=asyncio.subprocess.PIPE
    )
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


@pytest.fixture(params=["bulk", "grpc"])
async def tier(request, holder):
    bulk = BulkClient() if request.param == "bulk" else None
    made = PeerTier(PeerClient(holder[1]), "b", bulk, FetchCounts())
    made.way = request.param
    yield made
    await made.close()
    if bulk is not None:
        await bulk.close()


async def test_a_peer_killed_while_it_sends_is_a_failure_within_moments_and_then_left_alone(peer_bench, holder, tier):
    process, _ = holder
    wanted = peer_bench.ask(peer_bench.prompt(1, BLOCKS), block_bytes=BLOCK_BYTES)
    (first,) = await tier.get(wanted[:1], deadline_s=20)
    assert isinstance(first, Hit)
    assert tier._counts.fetches == {(tier.way, "ok"): 1}
    wanted[0].into[:] = 0
    task = asyncio.create_task(tier.get(wanted, deadline_s=20))
    await peer_bench.until(wanted[0].into.any)
    os.kill(process.pid, signal.SIGKILL)
    started = time.monotonic()
    answers = await task
    assert time.monotonic() - started < 5
    assert answers == [Failed("io")] * BLOCKS
    for _ in range(3):
        answers = await tier.get(wanted, deadline_s=20)
    assert answers == [Failed("breaker")] * BLOCKS


async def test_a_peer_that_is_stopped_while_it_sends_costs_the_deadline(peer_bench, holder, tier):
    process, _ = holder
    wanted = peer_bench.ask(peer_bench.prompt(1, BLOCKS), block_bytes=BLOCK_BYTES)
    await tier.get(wanted[:1], deadline_s=20)
    wanted[0].into[:] = 0
    started = time.monotonic()
    task = asyncio.create_task(tier.get(wanted, deadline_s=1.0))
    await peer_bench.until(lambda: wanted[0].into.any() or task.done())
    os.kill(process.pid, signal.SIGSTOP)
    try:
        answers = await task
        assert time.monotonic() - started < 2
        assert set(answers) <= {Failed("deadline"), Failed("io")}
        for each in wanted:
            each.into[:] = 0
    finally:
        os.kill(process.pid, signal.SIGCONT)
    await asyncio.sleep(0.3)
    assert not any(each.into.any() for each in wanted)
