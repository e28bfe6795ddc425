"""Acquire of a 2,048-token prefix that is on NVMe alone, against a plain O_DIRECT reader of the same bytes.

The store is in this process, so that the figure is of its own work: matching, making room in DRAM, reading, verifying,
entering the index, leasing. SmolLM2's float32 blocks, requests of 8 MiB, four in flight on either side, taking turns;
the ratio is the median of the turns'. KVTERRACE_BENCH_DIR says where; without it, .cache/bench of this repository.
"""

import asyncio
import statistics
import time
from pathlib import Path

import numpy as np
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.session import Session
from kvterrace.kvstore.store import Below, Store
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

from ._disk import Plain, aligned, folder

LAYOUT = BlockLayout(kv_heads=3, layers=30, planes=2, block_tokens=16, head_dim=64, dtype="float32")
BLOCKS = 128
PROMPTS = 3  # of which DRAM holds one and a half: what is asked for next is never there
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


async def _measure(where: Path) -> tuple[list[float], list[float]]:
    """Seconds of each acquire, and of each plain read of as many bytes."""
    tier = NvmeTier.open([NvmePath(where / "tier", 2 << 30)], threads=DEPTH)
    arena = Arena.create(BLOCKS * LAYOUT.slot_bytes * 3 // 2)
    store = Store(arena, below=Below(tier, in_flight_share=1.0, backlog_share=1.0))
    session = store.open_session(Namespace(b"bench" * 4, LAYOUT), client="bench")
    plain = Plain(where / "plain", REQUEST_BYTES, DEPTH)
    slots = aligned(BLOCKS * LAYOUT.block_bytes, seed=1)
    plain.write(slots, sync=True)
    ours, theirs = list[float](), list[float]()
    try:
        for number in range(PROMPTS):
            await _save(store, session, number)
        for turn in range(REPEATS + PROMPTS):
            began = time.perf_counter()
            given = await session.acquire(_prompt(turn % PROMPTS), skip=0, deadline_s=60.0)
            ours.append(time.perf_counter() - began)
            came = given.tiers.get("nvme", 0) // LAYOUT.block_tokens
            assert len(given.slots) == BLOCKS, given.reason
            session.release(given.lease)
            began = time.perf_counter()
            plain.read(slots[: came * LAYOUT.block_bytes])
            theirs.append(time.perf_counter() - began)
    finally:
        plain.close()
        await store.stop(10.0)
        store.close()
    return ours[PROMPTS:], theirs[PROMPTS:]


def run() -> list[Row]:
    with folder() as where:
        ours, theirs = asyncio.run(_measure(where))
    ratio = statistics.median(plain / acquire for plain, acquire in zip(theirs, ours, strict=True))
    of = (
        f"plain O_DIRECT reads of the same bytes {statistics.median(theirs) * 1e3:.0f} ms, "
        f"acquire {statistics.median(ours) * 1e3:.0f} ms; limit 0.85"
    )
    return [{"metric": "nvme.read_ratio", "value": ratio, "unit": "x", "of": of}]
