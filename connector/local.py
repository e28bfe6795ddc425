"""LocalConnector: both halves in one process, for the bundled engine, over any StoreClient.

It owns the bridge, the copy threads and the outbox, and wires them; what happens to a fetch is in scheduler.py, to a
save in saves.py, to the bytes in worker.py, and what is merely told in hints.py. Methods are the engine's thread's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from ..kvstore.types import StoreClient
from ..proto import BlockLayout, RetentionRange
from .base import ConnectorStatus, Event, HbmChange, LoadDone, Lookup, Origin, Receipt
from .bridge import Bridge
from .copiers import make_copier
from .hints import Hints
from .limits import ConnectorLimits
from .link import Link
from .outbox import Outbox
from .registration import Registration
from .saves import SaveSide
from .scheduler import Cycle, SchedulerSide
from .worker import CopyThreads, LoadResult, Transfer, Worker


class LocalConnector:
    """A KVConnector over a client. Complete after construction; start() may be called to wait for the store.

    pool: [num_pages, kv_heads, layers, planes, block_tokens, head_dim], contiguous; ValueError if it is not what the
    client's namespace says. The bridge must be the one that `client` was made on, if it was made on one; it is
    closed with the connector.
    """

    def __init__(
        self,
        kind: str,
        client: StoreClient,
        bridge: Bridge,
        pool: Tensor,
        on_event: Callable[[], None],
        *,
        limits: ConnectorLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        layout = client.namespace.layout
        check_pool(pool, layout)
        self._kind = kind
        self._client = client
        self._bridge = bridge
        self._outbox = Outbox(on_event)
        self._link = Link(client, bridge, self._outbox, limits, layout, clock)
        self._worker = Worker(make_copier(pool, layout), CopyThreads(limits.copy_threads), clock)
        self._registration = Registration(self._link, self._worker, pool)
        self._hints = Hints(self._link)
        self._scheduler = SchedulerSide(self._link, self._registration, self._hints.cost)
        self._saves = SaveSide(self._link, self._registration, self._worker)
        self._closed = False

    def start(self, timeout_s: float) -> str:
        """Open the session and prove the layout: "", or why the cache is not there yet ("disconnected", ...).

        SessionRefused passes through. Waits up to timeout_s for each of the two: call it before the first step. A
        store that has not answered by then goes on being tried. Without start() nothing ever connects.
        """

        async def begin() -> str:
            opening = asyncio.ensure_future(self._client.start())
            await asyncio.wait({opening}, timeout=timeout_s)
            if not opening.done():
                self._bridge.adopt(opening)
                return "deadline"
            opening.result()
            return await self._registration.ready(timeout_s)

        return self._bridge.call(begin, 3 * timeout_s)

    def fetch(
        self, request_id: str, tokens: bytes, hbm_blocks: int, max_blocks: int, origin: Origin | None = None
    ) -> None:
        self._hints.cancel(request_id)
        self._scheduler.fetch(request_id, tokens, hbm_blocks, max_blocks, origin)

    def load(self, request_id: str, pages: Sequence[int]) -> None:
        cycle = self._scheduler.begin_load(request_id, len(pages))
        if cycle is None:
            reason = "disconnected" if self._closed else "error"
            self._outbox.load_done(LoadDone(request_id, 0, {}, reason), loaded_bytes=0, seconds=0.0, corrupt_blocks=0)
            self._outbox.wake()
        elif pages:
            self._copy(cycle, tuple(pages))
        else:
            self._scheduler.end_load(cycle, LoadResult(0, (), ""))

    def decline(self, request_id: str) -> None:
        self._scheduler.decline(request_id)

    def save(
        self,
        request_id: str,
        tokens: bytes,
        start: int,
        pages: Sequence[int],
        retention: Sequence[RetentionRange] = (),
    ) -> None:
        self._saves.save(request_id, tokens, start, pages, retention)

    def cancel(self, request_id: str) -> None:
        self._hints.cancel(request_id)
        self._scheduler.cancel(request_id)

    def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        self._saves.retain(tokens, retention)

    def prefetch(self, request_id: str, tokens: bytes, hbm_blocks: int) -> bool:
        return self._hints.prefetch(request_id, tokens, hbm_blocks)

    def observe(self, first: int, tokens: int, seconds: float) -> None:
        self._hints.observe(first, tokens, seconds)

    def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> bool:
        return self._hints.hbm(changes, whole=whole)

    def served(self, receipt: Receipt) -> None:
        self._hints.served(receipt)

    def lookup(self, tokens: bytes, timeout_s: float) -> Lookup | None:
        whole = self._link.prefix(tokens, len(tokens) // self._link.block_bytes)
        return self._bridge.inquire(lambda: self._client.lookup(whole), timeout_s) if self._link.attached else None

    def poll(self) -> list[Event]:
        return self._outbox.take()

    def status(self) -> ConnectorStatus:
        fetches, loads = self._scheduler.in_flight()
        return self._outbox.status(
            kind=self._kind,
            connected=not self._closed and self._link.attached,
            fetches=fetches,
            loads=loads,
            save_bytes=self._saves.in_flight_bytes,
            prefetches=self._hints.standing,
        )

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Saves first, while everything still works; then what waits; then the copies; then the store's goodbye.
        self._saves.close(self._link.limits.close_s)
        self._scheduler.close()
        self._worker.close()
        self._bridge.close(self._client.close, self._link.limits.close_s)

    def _copy(self, cycle: Cycle, pages: tuple[int, ...]) -> None:
        acquired, limits = cycle.acquired, self._link.limits
        assert acquired is not None
        assert acquired.arena is not None
        size = len(pages) * self._link.layout.block_bytes
        transfer = Transfer(
            slots=acquired.slots[: len(pages)],
            pages=pages,
            arena=acquired.arena,
            fence=self._worker.copier.fence(),
            deadline=self._link.clock() + limits.load_s(size),
        )
        job = self._worker.load(transfer, lambda result: self._scheduler.end_load(cycle, result))
        if job is None:
            self._scheduler.end_load(cycle, LoadResult(0, (), "disconnected"))
        cycle.job = job


def check_pool(pool: Tensor, layout: BlockLayout) -> None:
    """ValueError unless a page of the pool is a block of this layout."""
    dtype = str(pool.dtype).removeprefix("torch.")
    if tuple(pool.shape[1:]) != layout.shape or dtype != layout.element:
        raise ValueError(
            f"the pool's pages are {tuple(pool.shape[1:])} of {dtype}, the namespace's blocks {layout.shape} of "
            f"{layout.element}"
        )
