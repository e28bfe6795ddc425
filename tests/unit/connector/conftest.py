"""A connector over a real embedded store, with a client between them that can be made to misbehave."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from kvterrace.connector.base import Event, LoadDone, Offer, SaveDone
from kvterrace.connector.bridge import Bridge
from kvterrace.connector.factory import Model, namespace_of
from kvterrace.connector.limits import ConnectorLimits
from kvterrace.connector.local import LocalConnector
from kvterrace.kvstore.arena import Arena, ArenaView
from kvterrace.kvstore.embedded import EmbeddedClient
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.types import Acquired, Origin, Receipt, Reserved, Wait
from kvterrace.proto import RetentionRange
from kvterrace.radix import pack_tokens

BLOCK_TOKENS = 4
SHAPE = (2, 3, 2, BLOCK_TOKENS, 8)  # float32: 1,536 bytes a block, in slots of 4,096
SLOTS = 64
PAGES = 64


class FaultyClient:
    """The real client, but each verb may hang, raise, answer late, and the store may be away. What it is told
    without an answer is kept in `told`."""

    def __init__(self, inner: EmbeddedClient, *, overlapping: bool = False) -> None:
        self._inner = inner
        self.namespace = inner.namespace
        self.away = False
        self.overlapping = overlapping
        self.hangs: set[str] = set()
        self.raises: set[str] = set()
        self.late_s: dict[str, float] = {}
        self.calls: list[str] = []
        self.told: list[tuple] = []
        self.compute_s = 0.0
        self.tiers: dict[str, int] | None = None

    @property
    def arena(self) -> ArenaView | None:
        return None if self.away else self._inner.arena

    @property
    def connected(self) -> bool:
        return self._inner.connected and not self.away

    async def start(self) -> None:
        await self._inner.start()

    async def acquire(
        self, tokens: bytes, *, skip: int, deadline_s: float, wait: Wait | None = None, origin: Origin | None = None
    ) -> Acquired:
        await self._before("acquire")
        answer = await self._inner.acquire(tokens, skip=skip, deadline_s=deadline_s, wait=wait, origin=origin)
        await self._after("acquire")
        tiers = answer.tiers if self.tiers is None else self.tiers
        return dataclasses.replace(answer, compute_s=self.compute_s or answer.compute_s, tiers=tiers)

    async def abandon(self, ticket: int) -> None:
        await self._inner.abandon(ticket)

    async def served(self, receipt: Receipt) -> None:
        await self._before("served")
        self.told.append(("served", receipt))
        await self._inner.served(receipt)

    async def lookup(self, tokens: bytes):
        await self._before("lookup")
        return await self._inner.lookup(tokens)

    async def reserve(
        self, tokens: bytes, *, start: int, count: int, retention: Sequence[RetentionRange] = ()
    ) -> Reserved:
        await self._before("reserve")
        if retention:
            self.told.append(("reserve", tokens, start, list(retention)))
        answer = await self._inner.reserve(tokens, start=start, count=count, retention=retention)
        await self._after("reserve")
        if self.overlapping:  # both blocks in one slot: a misunderstanding about the unit of slot numbers
            return dataclasses.replace(answer, slots=answer.slots[:1] * len(answer.slots))
        return answer

    async def commit(self, lease: int, checksums: Sequence[int]) -> bool:
        await self._before("commit")
        return await self._inner.commit(lease, checksums)

    async def abort(self, lease: int) -> None:
        await self._before("abort")
        await self._inner.abort(lease)

    async def release(self, lease: int, *, corrupt: Sequence[int] = ()) -> None:
        await self._before("release")
        await self._inner.release(lease, corrupt=corrupt)

    async def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        await self._before("retain")
        self.told.append(("retain", tokens, list(retention)))
        await self._inner.retain(tokens, retention)

    async def prefetch(self, ticket: int, tokens: bytes, *, skip: int) -> None:
        await self._before("prefetch")
        self.told.append(("prefetch", ticket, tokens, skip))
        await self._inner.prefetch(ticket, tokens, skip=skip)

    async def cancel_prefetch(self, ticket: int) -> None:
        await self._before("cancel_prefetch")
        self.told.append(("cancel_prefetch", ticket))
        await self._inner.cancel_prefetch(ticket)

    async def hbm(self, changes, *, whole) -> None:
        await self._before("hbm")
        self.told.append(("hbm", list(changes), whole))
        await self._inner.hbm(changes, whole=whole)

    async def observe(self, prefills: Sequence[tuple[int, int, float]]) -> None:
        await self._before("observe")
        self.told.append(("observe", list(prefills)))
        await self._inner.observe(prefills)

    async def close(self) -> None:
        await self._inner.close()
        self._inner._store.insight.stop()

    async def _before(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self.raises:
            raise RuntimeError(f"{verb} is broken")
        if verb in self.hangs:
            await asyncio.Event().wait()

    async def _after(self, verb: str) -> None:
        await asyncio.sleep(self.late_s.get(verb, 0.0))


class Rig:
    """One engine's worth: pool, connector, the store behind it, and what came out of poll()."""

    def __init__(self, limits: ConnectorLimits, slots: int, *, overlapping: bool = False, codec: str = "none") -> None:
        self.pool = torch.zeros((PAGES, *SHAPE), dtype=torch.float32)
        self.bridge = Bridge(max_tasks=limits.max_calls, late_s=limits.late_s)
        namespace = namespace_of(self.pool, Model(weights_digest=bytes(32), kv_codec=codec))
        self.arena = Arena.anonymous(slots * 4096)
        self.store = self.on_loop(lambda: Store(self.arena, clock=time.monotonic))
        inner = self.on_loop(lambda: EmbeddedClient(self.store, namespace))
        self.client = FaultyClient(inner, overlapping=overlapping)
        self._woken = threading.Condition()
        self.events: list[Event] = []
        self.connector = LocalConnector("embedded", self.client, self.bridge, self.pool, self._wake, limits=limits)
        self.started = self.connector.start(5.0)

    def on_loop(self, call: Callable):
        async def run():
            return call()

        return self.bridge.call(run, 5.0)

    def _wake(self) -> None:
        with self._woken:
            self._woken.notify_all()

    def poll(self) -> list[Event]:
        new = self.connector.poll()
        self.events += new
        return new

    def wait(self, kind: type, request_id: str, timeout_s: float = 5.0):
        """The next event of this kind for this request; it leaves `events`. None after timeout_s."""
        end = time.monotonic() + timeout_s
        while True:
            with self._woken:
                self.poll()
                for event in self.events:
                    if isinstance(event, kind) and event.request_id == request_id:
                        self.events.remove(event)
                        return event
                if time.monotonic() >= end:
                    return None
                self._woken.wait(min(0.05, end - time.monotonic()))

    def fetch(self, request_id: str, tokens: bytes, hbm: int, most: int) -> Offer:
        self.connector.fetch(request_id, tokens, hbm, most)
        return self.wait(Offer, request_id)

    def load(self, request_id: str, pages: Sequence[int]) -> LoadDone:
        self.connector.load(request_id, pages)
        return self.wait(LoadDone, request_id)

    def save(self, request_id: str, tokens: bytes, start: int, pages: Sequence[int]) -> SaveDone:
        self.connector.save(request_id, tokens, start, pages)
        return self.wait(SaveDone, request_id)

    def saved(self, tokens: bytes, pages: Sequence[int]) -> torch.Tensor:
        """Fill these pages with noise, save them as the first blocks of `tokens`, and return what they held."""
        self.pool[list(pages)] = torch.randn(len(pages), *SHAPE)
        assert self.save("filler", tokens, 0, pages).saved == len(pages)
        return self.pool[list(pages)].clone()

    def told(self, verb: str, count: int = 1, timeout_s: float = 5.0) -> list[tuple]:
        """What the store was told by this verb, once it was told so often (or after timeout_s), without the verb."""
        end = time.monotonic() + timeout_s
        while True:
            found = [told[1:] for told in self.client.told if told[0] == verb]
            if len(found) >= count or time.monotonic() >= end:
                return found
            time.sleep(0.002)

    def retention(self, tokens: bytes) -> list[tuple[int, float, bool]]:
        """(priority, ttl_s, pinned) of each stored block of a prompt."""

        def look() -> list[tuple[int, float, bool]]:
            index = self.client._inner._session._space.index
            kept = index.retention(index.match(tokens).blocks)
            columns = (column.tolist() for column in (kept.priority, kept.ttl_s, kept.pinned))
            return list(zip(*columns, strict=True))

        return self.on_loop(look)

    def settle(self, timeout_s: float = 5.0) -> None:
        """Wait until the store holds no lease and no reservation any more, then recount it; fails on a leak."""
        end = time.monotonic() + timeout_s
        while True:
            tier = self.on_loop(self.store.stats).tiers[0]
            if tier.leased_bytes == 0 and tier.reserved_bytes == 0:
                break
            assert time.monotonic() < end, f"leaked: {tier}"
            time.sleep(0.005)
        self.on_loop(self.store.check)

    def slot_of(self, tokens: bytes, block: int) -> int:
        """Where a stored block lies; for tests that damage it."""

        async def look() -> int:
            acquired = await self.client._inner.acquire(tokens, skip=0, deadline_s=0)
            await self.client._inner.release(acquired.lease)
            return acquired.slots[block].slot

        return self.bridge.call(look, 5.0)

    def close(self) -> None:
        self.connector.close()


@pytest.fixture
def make_rig():
    rigs: list[Rig] = []

    def make(slots: int = SLOTS, *, overlapping: bool = False, codec: str = "none", **limits) -> Rig:
        limits = {"close_s": 0.3, "late_s": 5.0, **limits}
        rigs.append(Rig(ConnectorLimits(**limits), slots, overlapping=overlapping, codec=codec))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
        rig.arena.close()


@pytest.fixture
def rig(make_rig) -> Rig:
    rig = make_rig()
    assert rig.started == ""
    return rig


@pytest.fixture
def tokens() -> Callable[..., bytes]:
    """tokens(count, seed): packed token ids, different for each seed."""

    def make(count: int, seed: int = 0) -> bytes:
        return pack_tokens(np.random.default_rng(seed).integers(0, 50_000, count).tolist())

    return make
