"""Blocks by number, and a tier on a real directory, small enough to fill in a moment."""

import contextlib
import mmap
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import xxhash
from kvterrace.kvstore.tiers import Record, Wanted
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier, OsFiles
from kvterrace.proto import Retention

PAGE = 4096
BLOCK_BYTES = 2 * PAGE
RECORD_BYTES = BLOCK_BYTES + PAGE
SEGMENT_BYTES = 64 * PAGE
CAPACITY_BYTES = 8 * SEGMENT_BYTES
SPACE = b"n" * 32


def key(number: int, size: int = 32) -> bytes:
    return (xxhash.xxh3_128_digest(f"key {number}".encode()) * 2)[:size]


def slot(size: int) -> np.ndarray:
    """uint8, page-aligned, whole pages."""
    return np.frombuffer(mmap.mmap(-1, -(-size // PAGE) * PAGE), np.uint8)


def record(number: int, size: int = BLOCK_BYTES, block_tokens: int = 16, **other) -> Record:
    memory = slot(size)
    memory[:size] = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
    fields = {
        "fingerprint": SPACE,
        "key": key(number),
        "parent": key(number - 1) if number else SPACE,
        "tokens": np.full(block_tokens, number, np.int32).tobytes(),
        "block_bytes": size,
        "payload": memory,
        "checksum": xxhash.xxh3_64_intdigest(memory[:size].tobytes()),
        "retention": Retention(priority=number % 101, ttl_s=number % 2 * 60.5, pinned=number % 3 == 0),
    } | other
    return Record(**fields)


def wanted(what: Record) -> Wanted:
    names = ("fingerprint", "key", "parent", "tokens", "block_bytes")
    return Wanted(*(getattr(what, name) for name in names), into=slot(what.block_bytes))


def same(want: Wanted, what: Record) -> bool:
    return bool(np.array_equal(want.into[: what.block_bytes], what.payload[: what.block_bytes]))


def open_tier(*paths: Path, capacity_bytes: int = CAPACITY_BYTES, daily: int = 0, **options) -> NvmeTier:
    where = [NvmePath(path, capacity_bytes, min_free_bytes=0, daily_write_bytes=daily) for path in paths]
    return NvmeTier.open(where, **({"segment_bytes": SEGMENT_BYTES} | options))


def as_killed(path: Path, to: Path) -> Path:
    """What a kill -9 at this moment would leave, as another directory."""
    return shutil.copytree(path, to)


def files_bytes(path: Path) -> int:
    """What the directory's files take on the disk."""
    taken = 0
    for each in path.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            taken += each.stat().st_blocks * 512
    return taken


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.seg"))


def numbers(tier: NvmeTier) -> set[int]:
    """Of the blocks in the inventory."""
    return {int(ids[0]) for part in tier.inventory() for ids in part.tokens}


async def held(tier: NvmeTier, records: list[Record]) -> int:
    """How many are got, with the right bytes; a wrong one fails."""
    asked = [wanted(each) for each in records]
    answers = await tier.get(asked, deadline_s=30)
    hits = [at for at, answer in enumerate(answers) if type(answer).__name__ == "Hit"]
    assert all(same(asked[at], records[at]) for at in hits)
    return len(hits)


def overwrite(path: Path, at: int, content: bytes) -> None:
    """Damage a file behind the tier's back; at < 0 counts from its end."""
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(content)
        os.fsync(file.fileno())


class GatedFiles(OsFiles):
    """Calls named in `held` wait until `gate` is set; `arrived` counts them. `fail`: errno that a call raises."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.fail: dict[str, int] = {}
        self.gate = threading.Event()
        self.arrived = threading.Semaphore(0)

    def _pass(self, call: str) -> None:
        if call in self.held:
            self.arrived.release()
            assert self.gate.wait(30)
        if call in self.fail:
            raise OSError(self.fail[call], os.strerror(self.fail[call]))

    def preadv(self, handle, buffers, offset):
        self._pass("preadv")
        return super().preadv(handle, buffers, offset)

    def pwritev(self, handle, buffers, offset):
        self._pass("pwritev")
        return super().pwritev(handle, buffers, offset)
