"""Nodes that leave and nodes that start: real processes, and a real Valkey between them."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest
from kvterrace.kvstore.service.channel import open_channel
from kvterrace.kvstore.service.stub import drain_call
from kvterrace.proto import kv_pb2 as pb

from .conftest import Tools, valkey_server

pytestmark = pytest.mark.service

BLOCKS = 40


@pytest.fixture(scope="module")
def valkey():
    with valkey_server() as server:
        yield server


@pytest.fixture
def node(folder: Path, serve_in, valkey, request):
    """Call it with a name and flags: a node of this test's cluster, started. old: it speaks wire version 1."""

    def start(name: str, *flags: str, old: bool = False):
        served = serve_in(folder / name)
        if old:
            command = served.command
            served.command = lambda *flags: [sys.executable, "-c", OLD, *command(*flags)[3:]]
        cluster = ("--cluster", f"redis://127.0.0.1:{valkey.port}", "--cluster-name", f"test-{id(request.node)}")
        return served.start(*cluster, "--node", name, "--listen", "127.0.0.1:0", *flags)

    return start


OLD = """
import sys
from kvterrace.kvstore.service import frames
frames.WIRE_VERSION = 1
from kvterrace.kvstore.cli import main
sys.argv[0] = "kvterrace"
main()
"""


async def drain(served, *flags: str) -> tuple[int, str]:
    """`kvterrace drain`: its exit code, and what it says."""
    command = [sys.executable, "-m", "kvterrace.kvstore", "drain", "--address", served.address, *flags]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def dram_blocks(served) -> int:
    return (await served.status()).tiers[0].blocks


async def meet(*nodes) -> None:
    """Until each sees all of them."""

    async def met() -> bool:
        return all([len((await each.status(check=False)).cluster.members) == len(nodes) for each in nodes])

    await Tools.until(met, 15.0)


async def test_what_a_node_leaves_to_another_a_third_gets_after_it_has_gone(node, connect, tools):
    a, b = node("a"), node("b")
    one = await connect(a.address)
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(one, prompt)
    await meet(a, b)
    code, said = await drain(a, "--deadline", "30")
    assert (code, a.wait()) == (0, 0), said
    assert f"handed over {BLOCKS} blocks" in said
    assert f"to: b {BLOCKS}" in said
    assert await dram_blocks(b) == BLOCKS
    await one.close()
    two = await connect(node("c").address)
    assert (await tools.fetched(two, prompt)).tiers == {"peer": BLOCKS * 16}
    assert (await b.status()).check_error == ""


async def test_while_it_drains_a_node_serves_what_it_has_and_takes_nothing_new(node, connect, tools):
    a = node("a", "--http", "127.0.0.1:0")
    one = await connect(a.address)
    prompt, other = tools.tokens(BLOCKS), tools.tokens(BLOCKS, 50_000)
    assert await tools.save(one, prompt)
    code, said = await drain(a, "--stay")
    assert code == 0, said
    assert f"left behind: {BLOCKS} blocks" in said
    assert f"nobody {BLOCKS}" in said
    given = await one.acquire(prompt, skip=0, deadline_s=1.0)
    assert given.tiers == {"dram": BLOCKS * 16}
    await one.release(given.lease)
    assert (await one.reserve(other, start=0, count=BLOCKS)).reason == "draining"
    late = await connect(a.address)
    assert (late.connected, late.refused) == (False, None), "it tries again, while its engine computes"
    async with httpx.AsyncClient(base_url=a.announced("http on"), trust_env=False) as http:
        ready = await http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        status = (await http.get("/status.json")).json()
        size = float(BLOCKS * one.arena.slot_bytes)
        assert f"kvterrace_cluster_hot_last_copy_bytes {size}" in (await http.get("/metrics")).text
    assert status["drain"]["phase"] == "done"
    assert (status["cluster"]["node"], status["cluster"]["draining"]) == ("a", True)
    assert status["counters"]["dropped_saves"] == {"draining": BLOCKS}


async def test_without_a_cluster_it_writes_what_waits_and_ends(own, folder, connect, tools):
    nvme = folder / "nvme"
    own.start("--nvme", f"{nvme}:1GiB", "--nvme-min-free", "1MiB")
    one = await connect(own.address)
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(one, prompt)
    code, said = await drain(own)
    assert (code, own.wait()) == (0, 0), said
    assert f"alone {BLOCKS}" in said
    await one.close()
    own.start("--nvme", f"{nvme}:1GiB", "--nvme-min-free", "1MiB")
    two = await connect(own.address)
    assert (await tools.fetched(two, prompt)).tiers == {"nvme": BLOCKS * 16}


async def test_who_hangs_does_not_keep_a_node_from_leaving(node, connect, tools):
    a, b = node("a"), node("b")
    one = await connect(a.address)
    assert await tools.save(one, tools.tokens(BLOCKS))
    await meet(a, b)
    b.signal(signal.SIGSTOP)
    async with open_channel(a.address) as channel:
        call = drain_call(channel, pb.DrainRequest(deadline_s=4.0), 30.0)
        said = [each async for each in call]
    assert a.wait() == 0
    assert (said[-1].phase, sum(said[-1].left.values())) == ("done", BLOCKS)
    assert said[-1].seconds < 4.5


async def test_a_node_is_warm_before_it_is_ready(node, connect, tools):
    a = node("a")
    one = await connect(a.address)
    hot, cold = tools.tokens(BLOCKS), tools.tokens(BLOCKS, 50_000)
    for prompt in (hot, cold):
        assert await tools.save(one, prompt)
    for _ in range(3):
        await one.release((await one.acquire(hot, skip=0, deadline_s=1.0)).lease)
    size = BLOCKS * one.arena.slot_bytes  # room for one of the two
    b = node("b", "--http", "127.0.0.1:0", "--warm-from-peers", str(size))
    async with httpx.AsyncClient(base_url=b.announced("http on"), trust_env=False) as http:

        async def ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await Tools.until(ready, 15.0)
    assert await dram_blocks(b) == BLOCKS
    two = await connect(b.address)
    given = await two.acquire(hot, skip=0, deadline_s=0.0)
    assert given.tiers == {"dram": BLOCKS * 16}
    assert tools.read(given) == [tools.content(block) for block in range(BLOCKS)]
    await two.release(given.lease)
    assert (await b.status()).check_error == ""


async def test_who_hangs_does_not_keep_a_node_from_becoming_ready(node, connect, tools):
    a = node("a")
    one = await connect(a.address)
    assert await tools.save(one, tools.tokens(BLOCKS))
    a.signal(signal.SIGSTOP)
    b = node("b", "--http", "127.0.0.1:0", "--warm-from-peers", "1MiB", "--warm-deadline", "3")
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=b.announced("http on"), trust_env=False) as http:

        async def ready() -> bool:
            return (await http.get("/ready")).status_code == 200

        await Tools.until(ready, 15.0)
    assert time.monotonic() - began < 3 + 10


async def test_nodes_and_engines_of_two_wire_versions_work_together(node, connect, tools, monkeypatch):
    new, old = node("new"), node("old", old=True)
    one = await connect(new.address)
    two = await connect(old.address)  # a later engine, an older sidecar
    first, second = tools.tokens(BLOCKS), tools.tokens(BLOCKS, 50_000)
    assert await tools.save(one, first)
    assert await tools.save(two, second)
    assert (await tools.fetched(two, first)).tiers == {"peer": BLOCKS * 16}
    assert (await tools.fetched(one, second)).tiers == {"peer": BLOCKS * 16}
    versions = {each.node: each.wire_version for each in (await new.status()).cluster.members}
    assert versions == {"new": 3, "old": 1}
    replicas = (await new.status()).cluster.replica_bytes
    assert replicas == BLOCKS * one.arena.slot_bytes, "what came from the other, which still has it"
    code, said = await drain(new, "--stay")
    assert code == 0
    assert f"left behind: {BLOCKS} blocks" in said, "an older node cannot take over, and is not asked"
