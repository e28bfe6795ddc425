"""What fetching between nodes is tested with: a lender on plain memory, a gRPC server of one call, and prompts."""

import asyncio
import struct
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import cache

import grpc.aio
import numpy as np
import xxhash
from kvterrace.kvstore.lending import Loan
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.service.channel import SERVER_OPTIONS
from kvterrace.kvstore.service.stub import KVStoreServicer, add_servicer
from kvterrace.kvstore.tiers import Wanted
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import block_keys, pack_tokens

B = 4
BLOCK_BYTES = 100_000  # not whole pages, and not whole chunks
SPACE = b"f" * 32


def prompt(name: int, blocks: int) -> bytes:
    """Packed tokens that share nothing with those of another name."""
    return pack_tokens(np.arange(blocks * B) + name * 100_000)


@cache
def content(key: bytes, block_bytes: int = BLOCK_BYTES) -> np.ndarray:
    """Of a block; do not write to it."""
    return np.random.default_rng(list(key)).integers(0, 256, block_bytes, dtype=np.uint8)


@cache
def checksum(key: bytes, block_bytes: int = BLOCK_BYTES) -> int:
    return xxhash.xxh3_64_intdigest(content(key, block_bytes))


def ask(tokens: bytes, first: int = 0, block_bytes: int = BLOCK_BYTES, **other) -> list[Wanted]:
    """Blocks first.. of the prompt."""
    keys = block_keys(SPACE, tokens, B)
    return [
        Wanted(
            **{
                "fingerprint": SPACE,
                "key": keys[at],
                "parent": keys[at - 1] if at else SPACE,
                "tokens": tokens[at * B * 4 : (at + 1) * B * 4],
                "block_bytes": block_bytes,
                "into": np.zeros(block_bytes + 50, np.uint8),
                "prompt": tokens,
                "ordinal": at,
            }
            | other
        )
        for at in range(first, len(keys))
    ]


def right(each: Wanted) -> bool:
    """Whether the block came, and nothing was written behind it."""
    size = each.block_bytes
    return (each.into[:size] == content(each.key, size)).all() and not each.into[size:].any()


class MemoryLender:
    """Holds whole prompts, makes up their blocks, and counts loans."""

    def __init__(self, *prompts: bytes, block_bytes: int = BLOCK_BYTES) -> None:
        self.prompts = list(prompts)
        self.block_bytes = block_bytes
        self.gate = asyncio.Event()
        self.gate.set()
        self.out = 0  # loans
        self.most = 0
        self.asked: list[tuple[int, int, float]] = []
        self.damage = set()  # ordinals

    async def lend(self, fingerprint, tokens, first, *, max_blocks, deadline_s):
        self.asked.append((first, len(tokens) // 4 // B, deadline_s))
        await self.gate.wait()
        held = max((self._shared(each, tokens) for each in self.prompts), default=0) if fingerprint == SPACE else 0
        keys = block_keys(fingerprint, tokens, B)[first : min(held, first + max_blocks)]
        if not keys:
            return None
        blocks = [content(key, self.block_bytes) for key in keys]
        sums = [checksum(key, self.block_bytes) for key in keys]
        for ordinal in self.damage:
            if first <= ordinal < first + len(blocks):
                blocks[ordinal - first] = blocks[ordinal - first] ^ 1
        self.out += 1
        self.most = max(self.most, self.out)
        return Loan(first, blocks, sums, keys, self._back)

    def _back(self) -> None:
        self.out -= 1

    @staticmethod
    def _shared(one: bytes, other: bytes) -> int:
        size = B * 4
        pairs = zip(range(0, len(one), size), range(0, len(other) - size + 1, size), strict=False)
        return next(
            (n for n, (a, b) in enumerate(pairs) if one[a : a + size] != other[b : b + size]),
            min(len(one), len(other)) // size,
        )


class PeerServicer(KVStoreServicer):
    """Fetch as a sidecar serves it."""

    def __init__(self, fetching: Fetching) -> None:
        self.fetching = fetching

    async def Fetch(self, request, context):
        async with aclosing(self.fetching.fetch(request)) as parts:
            async for part in parts:
                await context.write(part)


class Scripted(KVStoreServicer):
    """Fetch as `answer(request, context)` says, which writes parts. requests: that came."""

    def __init__(self, answer) -> None:
        self.answer = answer
        self.requests: list[pb.FetchRequest] = []
        self.running = 0

    async def Fetch(self, request, context):
        self.requests.append(request)
        self.running += 1
        try:
            await self.answer(request, context)
        finally:
            self.running -= 1


@dataclass(frozen=True)
class Member:
    """As membership knows it."""

    grpc: str
    node: str = "a"
    epoch: int = 1
    wire_version: int = 1
    bulk: str = ""


class Server:
    """A gRPC server on loopback. address: where."""

    def __init__(self, servicer, port: int = 0) -> None:
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        add_servicer(servicer, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port(f'127.0.0.1:{port}')}"

    async def __aenter__(self):
        await self.server.start()
        return self

    async def __aexit__(self, *_):
        await self.server.stop(0)


def offer_of(wanted, **other) -> pb.FetchPart:
    """The offer that a sound peer makes for these blocks."""
    sums = [checksum(each.key, each.block_bytes) for each in wanted]
    fields = {
        "count": len(wanted),
        "block_bytes": wanted[0].block_bytes,
        "checksums": struct.pack(f"<{len(sums)}Q", *sums),
        "keys": b"".join(each.key for each in wanted),
    }
    return pb.FetchPart(offer=pb.Offer(**(fields | other)))


def bytes_of(wanted) -> bytes:
    return b"".join(content(each.key, each.block_bytes).tobytes() for each in wanted)


def chunk(data: bytes) -> pb.FetchPart:
    return pb.FetchPart(chunk=pb.Chunk(data=data))


async def until(condition, seconds: float = 5.0) -> None:
    """Wait for it; the caller asserts."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  # conditions here have no event
                await asyncio.sleep(0.005)
    assert condition()


async def hang(request, context):
    """A peer that never answers."""
    await asyncio.sleep(60)
