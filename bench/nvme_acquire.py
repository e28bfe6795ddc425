"""Acquire of a 2,048-token prefix that is on NVMe alone, against a plain O_DIRECT reader of the same file.

The store is in this process, so that the figure is of its own work: matching, making room in DRAM, reading, verifying,
entering the index, leasing. SmolLM2's float32 blocks, requests of 8 MiB, four in flight on either side, taking turns;
the ratio is the median of the turns'. The plain reader fills the very slots that the acquire has filled (what a disk
gives depends on how the pages lie in memory, on a virtual one up to threefold) with other prompts of the same file, as
long unread. KVTERRACE_BENCH_DIR says where the file is (without it, .cache/bench of this repository),
KVTERRACE_BENCH_SHM where the arena is (without it, /dev/shm).
"""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash
from kvterrace.kvstore.arena import DEFAULT_DIRECTORY, Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.session import Session
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.kvstore.tiers.nvme.segment import SUFFIX
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

from ._disk import Plain, folder

LAYOUT = BlockLayout(kv_heads=3, layers=30, planes=2, block_tokens=16, head_dim=64, dtype="float32")
BLOCKS = 128
PROMPTS = 2  # asked for in turn; DRAM holds one, so what is asked for next is never there
REPEATS = 15
REQUEST_BYTES, DEPTH = 8 << 20, 4
Row = dict[str, object]


def _prompt(number: int) -> bytes:
    return pack_tokens(np.arange(BLOCKS * LAYOUT.block_tokens) + 10_000 * number)


async def _save(store: Store, session: Session, number: int) -> None:
    tokens, sums = _prompt(number), list[int]()
    given = session.reserve(tokens, start=0, count=BLOCKS)
    noise = np.random.default_rng(number).integers(0, 256, LAYOUT.block_bytes, dtype=np.uint8)
    for at, ref in enumerate(given.slots):
        block = session.arena.block(ref.slot)[: LAYOUT.block_bytes]
        block[:] = noise ^ np.uint8(at)
        sums.append(xxhash.xxh3_64_intdigest(block))
    assert len(sums) == BLOCKS, given.reason
    assert session.commit(given.lease, sums)
    assert await store.flush(60.0) == 0


@contextmanager
def _noted(seconds: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - began)


async def _measure(where: Path) -> tuple[list[float], list[float]]:
    """Seconds of each acquire, and of each plain read of as many bytes."""
    shm = Path(os.environ.get("KVTERRACE_BENCH_SHM", DEFAULT_DIRECTORY))
    tier = NvmeTier.open([NvmePath(where / "tier", 2 << 30)], threads=DEPTH, segment_bytes=512 << 20)
    arena = Arena.create(BLOCKS * LAYOUT.slot_bytes, directory=shm)
    store = Store(arena, below=Below(tier, in_flight_share=1.0, backlog_share=1.0))
    session = store.open_session(Namespace(b"bench" * 4, LAYOUT), client="bench")
    size = BLOCKS * LAYOUT.block_bytes
    ours, theirs = list[float](), list[float]()
    plain: Plain | None = None
    try:
        for number in range(2 * PROMPTS):
            await _save(store, session, number)
        (segment,) = (where / "tier").glob(f"*{SUFFIX}")
        plain = Plain(segment, REQUEST_BYTES, DEPTH)
        for turn in range(REPEATS + PROMPTS):
            with _noted(ours):
                given = await session.acquire(_prompt(turn % PROMPTS), skip=0, deadline_s=60.0)
            came = given.tiers.get("nvme", 0) // LAYOUT.block_tokens
            assert len(given.slots) == BLOCKS, given.reason
            session.release(given.lease)
            slots = [session.arena.block(ref.slot)[: LAYOUT.block_bytes] for ref in given.slots][-came:]
            with _noted(theirs):  # nobody reads what is in these slots until they are filled anew
                plain.scatter(slots, REQUEST_BYTES // LAYOUT.block_bytes, (PROMPTS + turn % PROMPTS) * size)
    finally:
        if plain is not None:
            plain.close()
        await store.stop(10.0)
        store.close()
    return ours[PROMPTS:], theirs[PROMPTS:]


def run() -> list[Row]:
    with folder() as where:
        ours, theirs = asyncio.run(_measure(where))
    ratio = statistics.median(plain / acquire for plain, acquire in zip(theirs, ours, strict=True))
    of = (
        f"plain O_DIRECT reads into the same memory {statistics.median(theirs) * 1e3:.0f} ms, "
        f"acquire {statistics.median(ours) * 1e3:.0f} ms; limit 0.85"
    )
    return [{"metric": "nvme.read_ratio", "value": ratio, "unit": "x", "of": of}]
