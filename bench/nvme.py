"""The NVMe tier's read and write path against a plain O_DIRECT program on the same file system.

Workload: 128 blocks of SmolLM2-135M (737,280 bytes each), requests of 8 MiB, four in flight on either side. The tier
also writes headers, computes and compares checksums, and keeps its index; the plain program only moves the bytes. Both
take turns, and each ratio is the median of the turns' ratios. Reads come from the device: O_DIRECT passes by the page
cache. KVTERRACE_BENCH_DIR says where; without it, .cache/bench of this repository.
"""

import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash
from kvterrace.kvstore.tiers import Hit, Record, Stored, Wanted
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import PAGE_BYTES

from ._disk import Plain, aligned, folder

BLOCK_BYTES = 737_280
BLOCKS = 128
BLOCK_TOKENS = 16
REQUEST_BYTES = 8 << 20
DEPTH = 4
REPEATS = 9
DEADLINE_S = 60.0
Row = dict[str, object]


class Workload:
    """128 blocks in one piece of page-aligned memory, and as many slots to read into."""

    def __init__(self) -> None:
        self.payload = aligned(BLOCKS * BLOCK_BYTES, seed=5)
        self.slots = aligned(BLOCKS * BLOCK_BYTES)
        self._tokens = np.random.default_rng(6).integers(0, 150_000, (BLOCKS, BLOCK_TOKENS), dtype=np.int32)
        self._sums = [xxhash.xxh3_64_intdigest(self._of(self.payload, n)) for n in range(BLOCKS)]

    def records(self, turn: int) -> list[Record]:
        """The blocks, under keys of their own for each turn."""
        return [
            Record(*self._identity(turn, n), BLOCK_BYTES, self._of(self.payload, n), self._sums[n], itemsize=2)
            for n in range(BLOCKS)
        ]

    def wanted(self, turn: int) -> list[Wanted]:
        return [Wanted(*self._identity(turn, n), BLOCK_BYTES, self._of(self.slots, n)) for n in range(BLOCKS)]

    def _identity(self, turn: int, n: int) -> tuple[bytes, bytes, bytes, bytes]:
        key, parent = (xxhash.xxh3_128_digest(f"{turn} {i}".encode()) * 2 for i in (n, n - 1))
        return bytes(32), key, parent, self._tokens[n].tobytes()

    @staticmethod
    def _of(memory: np.ndarray, n: int) -> np.ndarray:
        return memory[n * BLOCK_BYTES : (n + 1) * BLOCK_BYTES]


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


async def _turns(tier: NvmeTier, plain: Plain, load: Workload) -> dict[str, list[float]]:
    """Seconds of each action, by turn. Who goes first changes from turn to turn."""
    seconds: dict[str, list[float]] = {}
    dropped: list[bytes] = []

    def note(name: str, began: float) -> None:
        seconds.setdefault(name, []).append(time.perf_counter() - began)

    async def tier_turn(turn: int) -> None:
        records, wanted = load.records(turn), load.wanted(turn)
        began = time.perf_counter()
        put = await tier.put(records, deadline_s=DEADLINE_S)
        note("put", began)
        assert put == [Stored()] * BLOCKS, put
        assert await tier.flush(deadline_s=DEADLINE_S)
        note("put_flush", began)
        began = time.perf_counter()
        got = await tier.get(wanted, deadline_s=DEADLINE_S)
        note("get", began)
        assert all(isinstance(each, Hit) for each in got), got
        dropped.extend(record.key for record in records)

    def plain_turn() -> None:
        seconds.setdefault("write", []).append(_timed(lambda: plain.write(load.payload, sync=False)))
        seconds.setdefault("write_sync", []).append(_timed(lambda: plain.write(load.payload, sync=True)))
        seconds.setdefault("read", []).append(_timed(lambda: plain.read(load.slots)))

    for turn in range(REPEATS + 1):
        if turn % 2:
            plain_turn()
        await tier_turn(turn)
        if not turn % 2:
            plain_turn()
        await tier.drop(dropped)
        dropped.clear()
    return {name: values[1:] for name, values in seconds.items()}  # the first turn warms both up


async def _measure(where: Path) -> dict[str, list[float]]:
    load = Workload()
    tier = NvmeTier.open([NvmePath(where / "tier", 4 << 30)], threads=DEPTH)
    plain = Plain(where / "plain", REQUEST_BYTES, DEPTH)
    try:
        return await _turns(tier, plain, load)
    finally:
        plain.close()
        await tier.close()


def run() -> list[Row]:
    """About a minute and 3 GiB of writes."""
    with folder() as where:
        seconds = asyncio.run(_measure(where))
    size = BLOCKS * BLOCK_BYTES / 1e9
    speeds = {name: size / statistics.median(values) for name, values in seconds.items()}

    def ratio(metric: str, tier: str, plain: str, note: str) -> Row:
        value = statistics.median(p / t for t, p in zip(seconds[tier], seconds[plain], strict=True))
        of = f"plain O_DIRECT {speeds[plain]:.2f} GB/s, tier {speeds[tier]:.2f} GB/s; {note}"
        return {"metric": f"nvme.{metric}", "value": value, "unit": "x", "of": of}

    pages = BLOCK_BYTES // PAGE_BYTES
    return [
        ratio("tier_read_ratio", "get", "read", f"checksums compared, {pages} + 1 pages a block"),
        ratio("write_ratio", "put", "write", "limit 0.80"),
        ratio("write_flush_ratio", "put_flush", "write_sync", "with fdatasync on either side"),
    ]
