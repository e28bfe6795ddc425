"""How long the NVMe tier takes to be ready after a restart: 100,000 records, from open() to the end of inventory().

Workload: blocks of one page in segments of 256 MiB, written by the tier itself and closed; the files are dropped from
the page cache before each opening. A kill in the middle of writing leaves an open tail, which is scanned record by
record: measured apart, at the most that a tail can hold.
"""

import asyncio
import os
import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import xxhash
from kvterrace.kvstore.tiers import Record, Stored
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier

from ._disk import aligned, folder

RECORDS = 100_000
BATCH = 2_000
BLOCK_BYTES = 4096
BLOCK_TOKENS = 16
REPEATS = 5
CAPACITY_BYTES = 4 << 30
DEADLINE_S = 120.0
Row = dict[str, object]


def _records(first: int, count: int, payload: np.ndarray) -> list[Record]:
    checksum = xxhash.xxh3_64_intdigest(payload)
    numbers = np.arange(first, first + count, dtype=np.int32)
    made: list[Record] = []
    for number in numbers:
        key, parent = (xxhash.xxh3_128_digest(str(n).encode()) * 2 for n in (number, number - 1))
        tokens = np.full(BLOCK_TOKENS, number, np.int32).tobytes()
        made.append(Record(bytes(32), key, parent, tokens, BLOCK_BYTES, payload, checksum))
    return made


async def _fill(path: NvmePath, *, crash_to: Path) -> None:
    """Write all records; copy the directory while the last segment is open, then close."""
    payload = aligned(BLOCK_BYTES, seed=3)
    tier = NvmeTier.open([path])
    for first in range(0, RECORDS, BATCH):
        put = await tier.put(_records(first, BATCH, payload), deadline_s=DEADLINE_S)
        assert put == [Stored()] * BATCH, put[0]
    assert await tier.flush(deadline_s=DEADLINE_S)
    shutil.copytree(path.path, crash_to)
    await tier.close()


def _forget(where: Path) -> None:
    """Drop the files from the page cache."""
    for each in where.rglob("*"):
        if each.is_file():
            fd = os.open(each, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _recover(path: NvmePath) -> tuple[float, int]:
    _forget(path.path)
    began = time.perf_counter()
    tier = NvmeTier.open([path])
    found = sum(len(each.keys) for each in tier.inventory())
    seconds = time.perf_counter() - began
    asyncio.run(tier.close())
    return seconds, found


def run() -> list[Row]:
    """About a minute and 1.7 GiB of disk."""
    clean, tail = list[float](), list[float]()
    with folder() as where:
        path, crashed = NvmePath(where / "clean", CAPACITY_BYTES), where / "crashed"
        asyncio.run(_fill(path, crash_to=crashed))
        for _ in range(REPEATS):
            seconds, found = _recover(path)
            assert found == RECORDS, found
            clean.append(seconds)
        for turn in range(REPEATS):  # recovering mends the tail: each turn needs the torn state anew
            copy = where / f"crashed-{turn}"
            shutil.copytree(crashed, copy)
            seconds, found = _recover(NvmePath(copy, CAPACITY_BYTES))
            assert found == RECORDS, found
            tail.append(seconds)
            shutil.rmtree(copy)
    return [
        {"metric": "nvme.recover_100k_s", "value": statistics.median(clean), "unit": "s", "of": "limit 0.5"},
        {
            "metric": "nvme.recover_100k_open_tail_s",
            "value": statistics.median(tail),
            "unit": "s",
            "of": "the same after a kill: the last segment has no footer",
        },
    ]
