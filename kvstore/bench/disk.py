"""A disk through the NVMe tier's own code, beside a plain O_DIRECT program there, in turns."""

import asyncio
import errno
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import NvmeError
from ..tiers import Hit, Record, Stored, Wanted
from ..tiers.nvme import NvmePath, NvmeTier
from .memory import pages
from .row import GB, BenchError, Row

BLOCK_BYTES, BLOCKS = 1 << 20, 64
REQUEST_BYTES, DEPTH = 8 << 20, 4
SEGMENT_BYTES = 128 << 20
CAPACITY_BYTES = 5 * SEGMENT_BYTES
DEADLINE_S = 20.0
NEEDED_BYTES = CAPACITY_BYTES + 2 * BLOCKS * BLOCK_BYTES


def measure_disk(path: Path, budget_s: float) -> list[Row]:
    """In a folder of its own within `path`, removed afterwards. BenchError: it cannot be used."""
    try:
        free = shutil.disk_usage(path).free
        if free < NEEDED_BYTES:
            raise BenchError(f"--nvme: {path} has {free >> 20} MiB free, {NEEDED_BYTES >> 20} are needed for a moment")
        with tempfile.TemporaryDirectory(prefix=".kvterrace-bench-", dir=path) as folder:
            seconds = asyncio.run(_turns(Path(folder), budget_s))
    except OSError as error:
        direct = "its file system has no O_DIRECT" if error.errno == errno.EINVAL else error.strerror
        raise BenchError(f"--nvme: {path} cannot be measured: {direct}") from None
    except NvmeError as error:
        raise BenchError(f"--nvme: {error}") from None
    size = BLOCKS * BLOCK_BYTES / GB
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    plain = "plain O_DIRECT, same depth"
    return [
        Row("NVMe tier, read", size / medians["get"], "GB/s", size / medians["read"], plain),
        Row("NVMe tier, write and sync", size / medians["put"], "GB/s", size / medians["write"], plain),
    ]


async def _turns(folder: Path, budget_s: float) -> dict[str, list[float]]:
    load = _Load()
    where = NvmePath(folder / "tier", CAPACITY_BYTES, min_free_bytes=1)
    tier = NvmeTier.open([where], threads=DEPTH, segment_bytes=SEGMENT_BYTES)
    seconds: dict[str, list[float]] = {"put": [], "get": [], "write": [], "read": []}
    end, turn = time.perf_counter() + 2 * budget_s, 0
    with ThreadPoolExecutor(DEPTH) as threads:
        plain = _Plain(folder / "plain", threads)
        try:
            while turn < 3 or (time.perf_counter() < end and turn < 20):
                await _tier_turn(tier, load, turn, seconds)
                # Off the loop, so that the tier's own threads and timers are as they would be.
                seconds["write"].append(await asyncio.to_thread(_seconds, lambda: plain.write(load.payload)))
                seconds["read"].append(await asyncio.to_thread(_seconds, lambda: plain.read(load.slots)))
                turn += 1
        finally:
            await tier.close()
    return {name: taken[1:] for name, taken in seconds.items()}  # the first turn warms up


async def _tier_turn(tier: NvmeTier, load: "_Load", turn: int, seconds: dict[str, list[float]]) -> None:
    records = load.records(turn)
    began = time.perf_counter()
    put = await tier.put(records, deadline_s=DEADLINE_S)
    synced = await tier.flush(deadline_s=DEADLINE_S)
    seconds["put"].append(time.perf_counter() - began)
    if not synced or not all(isinstance(each, Stored) for each in put):
        raise BenchError(
            f"--nvme: the disk did not take the blocks: {next((e for e in put if e != Stored()), 'no sync')}"
        )
    began = time.perf_counter()
    got = await tier.get(load.wanted(turn), deadline_s=DEADLINE_S)
    seconds["get"].append(time.perf_counter() - began)
    if not all(isinstance(each, Hit) for each in got):
        raise BenchError("--nvme: the disk did not give the blocks back: run `kvterrace doctor --nvme` and see dmesg")
    await tier.drop([record.key for record in records])


class _Load:
    """Blocks in page-aligned memory, and slots to read into."""

    def __init__(self) -> None:
        self.payload, self.slots = pages(BLOCKS * BLOCK_BYTES), pages(BLOCKS * BLOCK_BYTES, None)
        self._tokens = [np.full(16, number, "<i4").tobytes() for number in range(BLOCKS)]
        self._sums = [xxhash.xxh3_64_intdigest(self._of(self.payload, number).data) for number in range(BLOCKS)]

    def records(self, turn: int) -> list[Record]:
        """Under keys of their own for each turn."""
        return [
            Record(*self._identity(turn, n), BLOCK_BYTES, self._of(self.payload, n), self._sums[n])
            for n in range(BLOCKS)
        ]

    def wanted(self, turn: int) -> list[Wanted]:
        return [Wanted(*self._identity(turn, n), BLOCK_BYTES, self._of(self.slots, n)) for n in range(BLOCKS)]

    def _identity(self, turn: int, number: int) -> tuple[bytes, bytes, bytes, bytes]:
        key, parent = (xxhash.xxh3_128_digest(f"{turn} {i}".encode()) * 2 for i in (number, number - 1))
        return bytes(32), key, parent, self._tokens[number]

    @staticmethod
    def _of(memory: NDArray[np.uint8], number: int) -> NDArray[np.uint8]:
        return memory[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]


class _Plain:
    """One preallocated file, DEPTH requests at a time, no header, no checksum."""

    def __init__(self, path: Path, threads: ThreadPoolExecutor) -> None:
        self._path, self._threads = path, threads

    def write(self, memory: NDArray[np.uint8]) -> None:
        handle = os.open(self._path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC, 0o600)

        def put(at: int) -> None:
            os.pwritev(handle, [memory[at : at + REQUEST_BYTES].data], at)

        try:
            os.posix_fallocate(handle, 0, len(memory))
            list(self._threads.map(put, range(0, len(memory), REQUEST_BYTES)))
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def read(self, memory: NDArray[np.uint8]) -> None:
        handle = os.open(self._path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

        def get(at: int) -> None:
            os.preadv(handle, [memory[at : at + REQUEST_BYTES].data], at)

        try:
            list(self._threads.map(get, range(0, len(memory), REQUEST_BYTES)))
        finally:
            os.close(handle)


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
