"""The same new long prompt at two engines at once: one computes it, the other waits no longer than computing takes, and
loads. On one node, and on two; with owners that are killed, and that hang."""

import asyncio
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.types import Wait

from .conftest import valkey_server

pytestmark = pytest.mark.service

BLOCKS, CALL, B = 48, 8, 16
CALL_S = 0.15  # of the model, for CALL blocks, as the engines say
SLEEP_S = 0.05  # and as it is: the machine that these tests run on may be busy
ALONE_S = CALL_S * BLOCKS / CALL
WAIT_S = 1.5 * CALL_S + 0.1  # without news
DEADLINE_S = 1.0  # of an acquire


@pytest.fixture(scope="module")
def valkey():
    with valkey_server() as server:
        yield server


@pytest.fixture(scope="module")
def node(shared, valkey):
    """Call it with a name: that node of the cluster, started on first use."""
    made = {}

    def start(name: str):
        if name not in made:
            folder = Path(tempfile.mkdtemp(prefix="kvt-"))
            made[name] = type(shared)(folder)
            url = f"redis://127.0.0.1:{valkey.port}"
            made[name].start("--cluster", url, "--node", name, "--listen", "127.0.0.1:0")
        return made[name]

    yield start
    for served in made.values():
        served.close()
        shutil.rmtree(served.folder)


@dataclass
class Engine:
    """What an engine does with a request, in real time, but that computing is sleeping. waited: answers that said
    "computing"; computed: blocks."""

    client: object
    tools: object
    waited: int = 0
    computed: int = 0
    took_s: float = 0.0
    tiers: dict = field(default_factory=dict)
    started: asyncio.Event = field(default_factory=asyncio.Event)

    async def learn(self) -> None:
        await self.client.observe([(0, CALL * B, CALL_S)] * 8)
        await asyncio.sleep(0.05)

    async def serve(self, prompt: bytes, ticket: int = 1) -> None:
        began = time.monotonic()
        given = await self.client.acquire(prompt, skip=0, deadline_s=DEADLINE_S, wait=Wait(ticket))
        while given.wait is not None:
            assert (given.lease, given.reason) == (0, "computing")
            self.waited += 1
            given = await self.client.acquire(prompt, skip=0, deadline_s=DEADLINE_S, wait=given.wait)
        have = len(given.slots)
        if have:
            assert self.tools.read(given) == [self.tools.content(block) for block in range(have)]
            await self.client.release(given.lease)
        self.tiers = dict(given.tiers)
        self.started.set()
        total = len(prompt) // (4 * B)
        while have < total:
            end = min(have + CALL, total)
            await asyncio.sleep(SLEEP_S * (end - have) / CALL)
            await self._save(prompt, have, end)
            self.computed += end - have
            have = end
        self.took_s = time.monotonic() - began

    async def _save(self, prompt: bytes, first: int, end: int) -> None:
        given = await self.client.reserve(prompt[: end * 4 * B], start=first, count=end - first)
        sums = []
        for block, ref in zip(given.blocks, given.slots, strict=True):
            data = self.tools.content(block)
            given.arena.block(ref.slot)[: len(data)] = np.frombuffer(data, np.uint8)
            sums.append(xxhash.xxh3_64_intdigest(data))
        if given.lease:
            await self.client.commit(given.lease, sums)


@pytest.fixture
def engine(connect, tools):
    async def make(served) -> Engine:
        made = Engine(await connect(served.address), tools)
        await made.learn()
        return made

    return make


async def met(one: Engine, other: Engine, tools) -> None:
    """Both nodes know each other: what one saves is found by the other."""
    prompt = tools.tokens(4, 900_000)
    assert await tools.save(one.client, prompt)
    assert await tools.save(other.client, tools.tokens(4, 910_000))
    for client, wanted in ((other.client, prompt), (one.client, tools.tokens(4, 910_000))):
        for _ in range(200):
            given = await client.acquire(wanted, skip=0, deadline_s=1.0)
            await client.release(given.lease)
            if given.tiers:
                break
            await asyncio.sleep(0.05)
        assert given.tiers


async def test_two_engines_of_one_node_compute_a_prompt_once(served, engine, tools):
    one, two = await engine(served), await engine(served)
    prompt = tools.tokens(BLOCKS)
    await asyncio.gather(one.serve(prompt), two.serve(prompt))
    assert one.computed + two.computed == BLOCKS
    assert max(one.took_s, two.took_s) < ALONE_S + DEADLINE_S
    status = await served.status()
    assert status.check_error == ""
    assert status.counters.inflight_waits["loaded"] == 1
    assert status.counters.inflight_tokens == BLOCKS * B


async def test_two_engines_of_two_nodes_compute_a_prompt_once(node, engine, tools):
    a, b = node("a"), node("b")
    one, two = await engine(a), await engine(b)
    await met(one, two, tools)
    prompt = tools.tokens(BLOCKS)
    await asyncio.gather(one.serve(prompt), two.serve(prompt))
    assert one.computed + two.computed == BLOCKS, (one, two)
    waiter = one if one.waited else two
    assert waiter.tiers == {"peer": BLOCKS * B}
    assert max(one.took_s, two.took_s) < ALONE_S + DEADLINE_S
    for served in (a, b):
        assert (await served.status()).check_error == ""


async def test_one_that_comes_in_the_middle_and_parts_gets_what_is_shared(node, engine, tools):
    one, two = await engine(node("a")), await engine(node("b"))
    await met(one, two, tools)
    shared = 32  # what is behind the last whole mark of 16 blocks is not known to be the same
    other = tools.tokens(BLOCKS)[: shared * 4 * B] + tools.tokens(BLOCKS, 70_000)[shared * 4 * B :]
    first = asyncio.create_task(one.serve(tools.tokens(BLOCKS)))
    await one.started.wait()
    await asyncio.sleep(SLEEP_S * 1.5)
    await two.serve(other)
    await first
    assert two.waited
    assert two.tiers == {"peer": shared * B}
    assert (one.computed, two.computed) == (BLOCKS, BLOCKS - shared)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_node_that_is_killed_or_hangs_while_its_engine_computes_costs_the_deadline(node, engine, tools, number):
    a, b = node(f"doomed-{number}"), node("b")
    one, two = await engine(a), await engine(b)
    await met(one, two, tools)
    prompt = tools.tokens(BLOCKS)
    first = asyncio.create_task(one.serve(prompt))
    await one.started.wait()
    second = asyncio.create_task(two.serve(prompt))
    await asyncio.sleep(SLEEP_S * 1.5)
    a.signal(number)
    await second
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert two.waited
    assert two.took_s < ALONE_S + WAIT_S + DEADLINE_S
    assert (await b.status()).check_error == ""


async def test_an_engine_that_dies_or_gives_up_is_followed_by_the_one_that_waits(node, engine, tools):
    a, b = node("a"), node("b")
    one, two = await engine(a), await engine(b)
    await met(one, two, tools)
    prompt = tools.tokens(BLOCKS)
    first = asyncio.create_task(one.serve(prompt, ticket=5))
    await one.started.wait()
    second = asyncio.create_task(two.serve(prompt))
    await asyncio.sleep(SLEEP_S * 2.5)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await one.client.abandon(5)
    await second
    assert two.waited
    assert sum(two.tiers.values()) == one.computed * B, "what was computed is not lost"
    assert one.computed + two.computed == BLOCKS
    assert two.took_s < ALONE_S + WAIT_S + DEADLINE_S


async def test_without_valkey_both_compute_and_nobody_waits(node, valkey, engine, tools):
    one, two = await engine(node("a")), await engine(node("b"))
    await met(one, two, tools)
    valkey.stop()
    prompt = tools.tokens(BLOCKS)
    await asyncio.gather(one.serve(prompt), two.serve(prompt))
    assert (one.computed, two.computed) == (BLOCKS, BLOCKS)
    assert max(one.took_s, two.took_s) < ALONE_S + DEADLINE_S
