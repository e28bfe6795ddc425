"""Scratch: namespaces of our own on a sidecar, found by nobody else, filled with random blocks and cleared at the end.

Their label begins with LABEL and a random word, by which they are found in the sidecar's status whatever the tenant's
salt makes of their fingerprints. Should they stay behind after all, they leave first from KEEP_S on.
"""

import dataclasses
import secrets
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from ...proto import BlockLayout, Namespace, Retention, RetentionRange
from ...proto import kv_pb2 as pb
from ...radix import pack_tokens
from ..arena import ArenaView
from ..errors import KvterraceError
from ..service.admin import CallDenied, clear_store, fetch_status
from ..service.channel import Address, address_parts
from ..sidecar import SidecarClient
from ..types import Acquired, SlotRef
from .report import Failed, Skipped

LABEL = "kvterrace-verify"
CALL_S = 5.0
BLOCK_TOKENS = 16
LAYOUT = BlockLayout(kv_heads=2, layers=4, planes=2, block_tokens=BLOCK_TOKENS, head_dim=64, dtype="float16")
KEEP_S = 120.0
GIVEN_UP = ("evicted", "full", "quota")  # why blocks of ours may be gone that were there
ORDINARY, LOWEST = Retention(ttl_s=KEEP_S), Retention(priority=0, ttl_s=KEEP_S)


class Scratch:
    """Use as an asynchronous context manager; leaving it closes every session and clears every namespace."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.word = secrets.token_hex(6)
        self.left_blocks = 0
        """In our namespaces after the clearing; -1 = it was not allowed to clear or to look."""
        self._clients: list[SidecarClient] = []

    async def __aenter__(self) -> "Scratch":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.clean()

    def namespace(self) -> Namespace:
        """One that nobody has ever had."""
        return Namespace(secrets.token_bytes(32), LAYOUT, producer="kvterrace verify", label=f"{LABEL}-{self.word}")

    async def connect(self, namespace: Namespace, address: Address | None = None) -> SidecarClient:
        """An open session. SessionRefused by the store; Skipped when its arena is not on this host."""
        plain, credentials = address_parts(address or self.address)
        client = SidecarClient(plain, namespace, client=LABEL, credentials=credentials)
        self._clients.append(client)
        await client.start()
        if not client.connected:
            await fetch_status(
                address or self.address, check=False, timeout_s=CALL_S
            )  # which says why, if nobody answers
            raise Skipped("the sidecar answers, but its arena cannot be attached: run this on its host, as its user")
        return client

    async def status(self) -> pb.StatusReply:
        """Skipped when the caller may not look."""
        try:
            return await fetch_status(self.address, check=False, timeout_s=CALL_S)
        except CallDenied as denied:
            raise Skipped(f"the sidecar does not tell this caller its status: {denied}") from None

    async def spaces(self) -> list[pb.NamespaceStatus]:
        """Ours, as the sidecar tells them."""
        mine = f"{LABEL}-{self.word}"
        return [space for space in (await self.status()).namespaces if space.label == mine]

    async def clear(self) -> None:
        """Drop all our blocks, in every tier. Skipped when the caller may not."""
        for space in await self.spaces():
            try:
                await clear_store(self.address, space.fingerprint, timeout_s=CALL_S)
            except CallDenied as denied:
                raise Skipped(f"the sidecar does not let this caller clear: {denied}") from None

    async def clean(self) -> None:
        """Close sessions, clear namespaces. What is in the way is told by left_blocks."""
        self.left_blocks = 0
        try:
            await self.clear()  # before the sessions end: an empty namespace without one is forgotten at once
        except (Skipped, KvterraceError):
            self.left_blocks = -1
        for client in self._clients:
            await client.close()
        self._clients.clear()
        if self.left_blocks == 0:
            try:
                self.left_blocks = sum(space.blocks for space in await self.spaces())
            except (Skipped, KvterraceError):
                self.left_blocks = -1


def random_tokens(blocks: int, extra: int = 0) -> bytes:
    """Packed, of so many full blocks and a few tokens more; no prompt of anybody's begins so."""
    return pack_tokens([secrets.randbelow(1 << 30) for _ in range(blocks * BLOCK_TOKENS + extra)])


def random_blocks(count: int, layout: BlockLayout = LAYOUT) -> NDArray[np.uint8]:
    """uint8 [count, block_bytes]."""
    data = np.frombuffer(secrets.token_bytes(count * layout.block_bytes), np.uint8)
    return data.reshape(count, layout.block_bytes)


async def save(
    client: SidecarClient,
    tokens: bytes,
    blocks: NDArray[np.uint8],
    first: int = 0,
    worth: Retention = ORDINARY,
) -> int:
    """Write blocks `first`.. of a prompt; how many became visible. Failed when what was reserved is not committed."""
    wish = [RetentionRange(first, first + len(blocks), worth)]
    given = await client.reserve(tokens, start=first, count=len(blocks), retention=wish)
    if not given.lease or given.arena is None:
        return 0
    rows = blocks[[block - first for block in given.blocks]]
    fill(given.arena, given.slots, rows)
    if not await client.commit(given.lease, [xxhash.xxh3_64_intdigest(row.tobytes()) for row in rows]):
        raise Failed(f"{len(rows)} blocks that were reserved and written could not be committed")
    return len(rows)


def fill(arena: ArenaView, slots: Sequence[SlotRef], blocks: NDArray[np.uint8]) -> None:
    for ref, row in zip(slots, blocks, strict=True):
        arena.block(ref.slot)[: len(row)] = row


async def find(client: SidecarClient, tokens: bytes, deadline_s: float = 2.0) -> Acquired:
    """Lease what there is. Release it."""
    return await client.acquire(tokens, skip=0, deadline_s=deadline_s)


def wrong_of(given: Acquired, blocks: NDArray[np.uint8]) -> list[int]:
    """Positions whose bytes fail their checksum or generation, as an engine finds them. Failed when one passes both and
    is not what was written: the unforgivable."""
    wrong: list[int] = []
    for position, ref in enumerate(given.slots):
        assert given.arena is not None
        data = given.arena.block(ref.slot)[: blocks.shape[1]].copy()
        whole = xxhash.xxh3_64_intdigest(data.tobytes()) == ref.checksum
        if not whole or given.arena.generation(ref.slot) != ref.generation:
            wrong.append(position)
        elif not np.array_equal(data, blocks[given.first + position]):
            raise Failed(f"block {given.first + position} passes its checksum and is not what was written")
    return wrong


async def expect(client: SidecarClient, tokens: bytes, blocks: NDArray[np.uint8], count: int) -> Acquired:
    """That exactly the first `count` blocks are found, each right; the answer, released. Failed otherwise; Skipped when
    the store gave some up meanwhile, since others needed the room."""
    given = await find(client, tokens)
    try:
        wrong = wrong_of(given, blocks)
    finally:
        await client.release(given.lease)
    if wrong:
        raise Failed(f"{len(wrong)} of {len(given.slots)} blocks read back fail their checksum")
    if len(given.slots) < count and given.reason in GIVEN_UP:
        raise Skipped(f"{count - len(given.slots)} blocks of ours had to leave meanwhile ({given.reason}): try again")
    if len(given.slots) != count:
        raise Failed(f"{len(given.slots)} blocks found instead of {count} ({given.reason or 'all there'})")
    return given


def other(namespace: Namespace, **fields: object) -> Namespace:
    """With other values of these fields, of the layout too."""
    names = {field.name for field in dataclasses.fields(BlockLayout)}
    layout = {name: value for name, value in fields.items() if name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    changed = dataclasses.replace(namespace.layout, **layout)  # type: ignore[arg-type]
    return dataclasses.replace(namespace, layout=changed, **rest)  # type: ignore[arg-type]
