"""Checks of a store through sessions of its own: bytes, leases, visibility. Each takes a Scratch and says what it
found; Failed and Skipped end one."""

import asyncio
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..service.admin import fetch_status
from .report import Failed, Skipped
from .scratch import (
    BLOCK_TOKENS,
    LAYOUT,
    LOWEST,
    Scratch,
    expect,
    fill,
    find,
    random_blocks,
    random_tokens,
    save,
    wrong_of,
)

BLOCKS = 64
ROUNDS = 3
SETTLE_S = 5.0
WRITE_S = 0.5
POLL_S = 0.05
ROOM = "the store had no room for these blocks: {}"


async def round_trip(scratch: Scratch) -> str:
    """Random blocks out and in again, by another session than the one that wrote them."""
    namespace = scratch.namespace()
    writer, reader = await scratch.connect(namespace), await scratch.connect(namespace)
    moved = 0
    for _ in range(ROUNDS):
        tokens, blocks = random_tokens(BLOCKS), random_blocks(BLOCKS)
        for first in range(0, BLOCKS, BLOCKS // 4):
            part = blocks[first : first + BLOCKS // 4]
            if await save(writer, tokens, part, first) != len(part):
                raise Skipped(ROOM.format(f"{BLOCKS} of {LAYOUT.block_bytes:,} bytes"))
        for client in (writer, reader):
            moved += len((await expect(client, tokens, blocks, BLOCKS)).slots)
    return f"{moved} blocks of {LAYOUT.block_bytes:,} bytes read back by two sessions, each byte as written"


async def boundaries(scratch: Scratch) -> str:
    """Full blocks only, whatever the length: k*B-1, k*B and k*B+1 tokens, and a prompt that breaks within a block."""
    client = await scratch.connect(scratch.namespace())
    tokens, blocks = random_tokens(4), random_blocks(4)
    if await save(client, tokens, blocks) != 4:
        raise Skipped(ROOM.format("4"))
    tail = random_tokens(1)
    for length in (BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 4 * BLOCK_TOKENS - 1, 4 * BLOCK_TOKENS):
        await expect(client, tokens[: length * 4], blocks, length // BLOCK_TOKENS)
        await expect(client, tokens[: length * 4] + tail, blocks, length // BLOCK_TOKENS)
    return "5 lengths around block boundaries, alone and with another end: full blocks of the shared head, no more"


async def corruption(scratch: Scratch) -> str:
    """A byte of a block of ours is changed in the arena, as by a bad memory cell: the reader notices, the block goes,
    and is never served again."""
    namespace = scratch.namespace()
    client = await scratch.connect(namespace)
    tokens, blocks = random_tokens(4), random_blocks(4)
    if await save(client, tokens, blocks) != 4:
        raise Skipped(ROOM.format("4"))
    await asyncio.sleep(WRITE_S)  # where there is a lower tier, it has them by then
    given = await find(client, tokens)
    if len(given.slots) != 4 or given.arena is None:
        await client.release(given.lease)
        raise Skipped(f"only {len(given.slots)} of 4 blocks are still there ({given.reason})")
    given.arena.block(given.slots[2].slot)[7] ^= 0x20
    wrong = wrong_of(given, blocks)
    await client.release(given.lease, corrupt=wrong)
    if wrong != [2]:
        raise Failed(f"the changed block is number 2, its checksum finds {wrong}")
    after = await find(client, tokens)
    damaged = wrong_of(after, blocks)
    await client.release(after.lease)
    if damaged:
        raise Failed(f"{len(damaged)} damaged blocks were given out again after they had been reported")
    if len(after.slots) == 2:
        return f"one bit flipped: noticed, dropped with what hangs below it; then found: 2 blocks ({after.reason})"
    return (
        f"one bit flipped: noticed and dropped; the {len(after.slots)} blocks found then came whole from a lower tier"
    )


async def torn_write(scratch: Scratch) -> str:
    """What was reserved is invisible until it is committed; given up, or left by a session that ends, it never was."""
    namespace = scratch.namespace()
    writer, reader = await scratch.connect(namespace), await scratch.connect(namespace)
    for end in ("abort", "close"):
        tokens, blocks = random_tokens(2), random_blocks(2)
        given = await writer.reserve(tokens, start=0, count=2)
        if not given.lease or given.arena is None:
            raise Skipped(ROOM.format(given.reason))
        fill(given.arena, given.slots, blocks)
        during = await expect(reader, tokens, blocks, 0)
        if during.reason not in ("not_committed", "never_seen"):
            raise Failed(f"a block that is being written is told as {during.reason!r}")
        if end == "abort":
            await writer.abort(given.lease)
        else:
            await writer.close()
        await expect(reader, tokens, blocks, 0)
        if await save(reader, tokens, blocks) != 2:
            raise Failed(f"after the {end} nobody can write these blocks any more")
        await expect(reader, tokens, blocks, 2)
    return "reserved blocks were invisible; after an abort, and after the writer's end, they were free to be written"


async def leases(scratch: Scratch) -> str:
    """What is leased stays as it is while it is read, even when it is cleared; then its slot's generation moves, so
    that a late copy is void."""
    namespace = scratch.namespace()
    client = await scratch.connect(namespace)
    tokens, blocks = random_tokens(4), random_blocks(4)
    if await save(client, tokens, blocks) != 4:
        raise Skipped(ROOM.format("4"))
    given = await find(client, tokens)
    if len(given.slots) != 4 or given.arena is None:
        await client.release(given.lease)
        raise Skipped(f"only {len(given.slots)} of 4 blocks are still there ({given.reason})")
    await scratch.clear()
    fresh, other_tokens = random_blocks(8), random_tokens(8)
    await save(client, other_tokens, fresh)  # which must not land in a leased slot
    if wrong_of(given, blocks):
        raise Failed("leased blocks changed while they were being read")
    await expect(client, tokens, blocks, 0)
    await client.release(given.lease)
    arena = given.arena
    moved = await _until(lambda: all(arena.generation(ref.slot) != ref.generation for ref in given.slots))
    if not moved:
        raise Failed(
            f"{SETTLE_S:.0f} s after the release the slots' generations have not moved: a late copy would pass"
        )
    return "4 leased blocks stayed readable after a clear and new writes; on release all generations moved"


async def capacity(scratch: Scratch, max_bytes: int) -> str:
    """Write up to max_bytes, watching: what a tier uses is never above its capacity, and what is served is right."""
    if not max_bytes:
        raise Skipped("--max-bytes 0")
    client = await scratch.connect(scratch.namespace())
    first = (await scratch.status()).tiers
    dram = next(tier.capacity_bytes for tier in first if tier.name == "dram")
    written = refused = 0
    kept: list[tuple[bytes, NDArray[np.uint8]]] = []
    while written + refused < max_bytes:
        tokens, blocks = random_tokens(32), random_blocks(32)
        got = await save(client, tokens, blocks, worth=LOWEST)
        written += got * LAYOUT.block_bytes
        refused += (32 - got) * LAYOUT.block_bytes
        kept = [*kept[-31:], (tokens, blocks)]
        for tier in (await scratch.status()).tiers:
            if tier.capacity_bytes and tier.used_bytes > tier.capacity_bytes:
                raise Failed(f"{tier.name} uses {tier.used_bytes:,} bytes of {tier.capacity_bytes:,}")
    for tokens, blocks in kept:
        given = await find(client, tokens)
        wrong = wrong_of(given, blocks)
        await client.release(given.lease)
        if wrong:
            raise Failed(f"{len(wrong)} blocks that survived are damaged")
    more = f", {refused:,} refused" if refused else ""
    beyond = "more than fits" if written + refused > dram else f"of {dram:,}, so the cap itself was not reached"
    return f"{written:,} bytes written{more} ({beyond}); no tier ever used more than its capacity"


async def recount(scratch: Scratch) -> str:
    """The store counts every slot and lease again."""
    reply = await fetch_status(scratch.address, check=True, timeout_s=60.0)
    if reply.check_error:
        raise Failed(f"the recount found a fault: {reply.check_error}")
    return f"{sum(tier.blocks for tier in reply.tiers):,} blocks recounted, all agree"


async def _until(true: Callable[[], bool]) -> bool:
    """Whether it came true within SETTLE_S."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SETTLE_S
    while not true():
        if loop.time() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True
