"""A small engine: acquire, look at every byte, compute the rest, save it. Requests are aborted, sessions end."""

import asyncio
import itertools
import random
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import xxhash
from kvterrace.kvstore.errors import SessionRefused
from kvterrace.kvstore.session import Session
from kvterrace.kvstore.types import Acquired, Slots, Wait
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import block_keys, pack_tokens

from .node import SimNode

BLOCK_TOKENS = 4
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=BLOCK_TOKENS, head_dim=64, dtype="float16")
SPACES = tuple(Namespace(f"weights-{n}".encode(), LAYOUT) for n in range(2))
BLOCK_S = 0.02  # what computing one takes
CHUNK = 6  # blocks of a call of the model
SLACK_S = 0.05  # that an answer may be late
DEADLINES_S = (0.0, 0.02, 0.1, 0.5, 2.0)


class Wrong(Exception):
    """An invariant does not hold."""


@lru_cache(maxsize=20_000)
def content(key: bytes) -> bytes:
    """Of the block of that key: what computing it would give."""
    return np.random.default_rng(list(key)).bytes(LAYOUT.block_bytes)


@lru_cache(maxsize=2_000)
def keys_of(fingerprint: bytes, tokens: bytes) -> tuple[bytes, ...]:
    return tuple(block_keys(fingerprint, tokens, BLOCK_TOKENS))


class Prompts:
    """A few documents, each with a few ways on from several places: what requests share."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def next(self) -> bytes:
        rng = self._rng
        document, cut = rng.randrange(3), rng.choice((3, 8, 20))
        head = np.arange(cut * BLOCK_TOKENS) + document * 100_000
        tail = np.arange(rng.randrange(0, 12 * BLOCK_TOKENS)) + document * 100_000 + 10_000 * rng.randrange(1, 4)
        return pack_tokens(np.concatenate([head, tail]))


@dataclass(frozen=True)
class Way:
    """Of one request. patience: 0 to 1, of the engine with what it leased and with what it saves."""

    name: str
    tokens: bytes
    deadline_s: float
    patience: float


class Engine:
    """On one node. requests: under way, by number."""

    def __init__(self, node: SimNode, rng: random.Random, prompts: Prompts) -> None:
        self.node = node
        self._rng = rng
        self._prompts = prompts
        self._sessions: dict[Namespace, Session] = {}
        self._numbers = itertools.count(1)
        self.requests: dict[int, tuple[float, str]] = {}  # until when it must be done, and what it is
        self.done = 0
        self.wrong: list[str] = []

    async def run(self, until: float) -> None:
        """Send requests for as long; each is a task of this node."""
        loop = asyncio.get_running_loop()
        while loop.time() < until:
            await asyncio.sleep(self._rng.expovariate(4.0))
            if self._rng.random() < 0.02:
                self.end_session(self._rng.choice(SPACES))
            task = self.node.life.spawn(self._request(next(self._numbers)))
            if self._rng.random() < 0.1:
                loop.call_later(self._rng.uniform(0.0, 1.0), task.cancel)

    def end_session(self, space: Namespace) -> None:
        session = self._sessions.pop(space, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        for space in SPACES:
            self.end_session(space)

    def _session(self, space: Namespace) -> Session:
        session = self._sessions.get(space)
        if session is None:
            session = self._sessions[space] = self.node.store.open_session(space, client=self.node.name)
            session.observe([(0, n * BLOCK_TOKENS, n * BLOCK_S) for n in (1, 2, 4, 8, 16)])
        return session

    async def _request(self, number: int) -> None:
        rng, loop = self._rng, asyncio.get_running_loop()
        tokens, space = self._prompts.next(), rng.choices(SPACES, (4, 1))[0]
        blocks = len(tokens) // 4 // BLOCK_TOKENS
        way = Way(f"{self.node.name}/{number}", tokens, rng.choice(DEADLINES_S), rng.random())
        wait = Wait(number) if rng.random() < 0.6 else None
        bound = loop.time() + 2 * way.deadline_s + SLACK_S + (blocks + 2) * BLOCK_S * 3 + 2.0
        self.requests[number] = bound, f"{way.name}, {blocks} blocks, deadline {way.deadline_s} s, {wait}"
        try:
            session = self._session(space)
        except SessionRefused:  # it drains
            del self.requests[number]
            self.done += 1
            return
        try:
            have = await self._load(session, way, wait)
            for start in range(have, blocks, CHUNK):
                end = min(start + CHUNK, blocks)
                await asyncio.sleep((end - start) * BLOCK_S)
                if not session.closed:
                    await self._save(session, way, start, end)
            self.done += 1
            if loop.time() > bound:
                self._fault(f"{way.name} took until {loop.time():.3f}, it should have ended by {bound:.3f}")
        finally:
            del self.requests[number]
            if wait is not None and not session.closed:
                session.abandon(number)

    async def _load(self, session: Session, way: Way, wait: Wait | None) -> int:
        """How many blocks came; their bytes are looked at as soon as they are leased, and again at the end."""
        got = await self._acquire(session, way, wait)
        while got.wait is not None:
            got = await self._acquire(session, way, got.wait)
        self.node.net.note(f"acquired {way.name} {len(got.slots)} {sorted(got.tiers.items())} {got.reason}")
        try:
            self._look(session, way, got.slots, "when it came")
            await asyncio.sleep(way.patience * 0.3)
            if not session.closed:
                self._look(session, way, got.slots, "while it was leased")
        finally:
            if not session.closed:
                session.release(got.lease)
        return len(got.slots)

    async def _acquire(self, session: Session, way: Way, wait: Wait | None) -> Acquired:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        got = await session.acquire(way.tokens, skip=0, deadline_s=way.deadline_s, wait=wait)
        took = loop.time() - asked
        if took > way.deadline_s + SLACK_S:
            self._fault(f"{way.name}: acquire took {took:.3f} s with a deadline of {way.deadline_s} s")
        if got.wait is not None:
            self.node.net.note(f"waits {way.name} {took:.6f}")
        return got

    def _look(self, session: Session, way: Way, slots: Slots, when: str) -> None:
        for key, ref in zip(keys_of(session.fingerprint, way.tokens), slots, strict=False):
            found = session.arena.block(ref.slot)[: LAYOUT.block_bytes].tobytes()
            if found != content(key):
                self._fault(f"{way.name}: wrong bytes {when}")
                return

    async def _save(self, session: Session, way: Way, start: int, end: int) -> None:
        given = session.reserve(way.tokens, start=start, count=end - start)
        if not given.lease:
            return
        ended = False
        try:
            sums = []
            for ordinal, ref in zip(given.blocks, given.slots, strict=True):
                data = content(keys_of(session.fingerprint, way.tokens)[ordinal])
                half = len(data) // 2
                into = session.arena.block(ref.slot)
                into[:half] = np.frombuffer(data[:half], np.uint8)
                if ordinal % 4 == 0:
                    await asyncio.sleep(way.patience * 0.005)
                    if session.closed:
                        return
                into[half : len(data)] = np.frombuffer(data[half:], np.uint8)
                sums.append(xxhash.xxh3_64_intdigest(data))
            ended = True
            session.commit(given.lease, sums)
        finally:
            if not ended and not session.closed:
                session.abort(given.lease)

    def _fault(self, what: str) -> None:
        self.wrong.append(what)
        self.node.net.note(f"wrong {what}")
