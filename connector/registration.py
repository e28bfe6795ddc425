"""Registration: before an arena is used for the first time, prove that both sides mean the same bytes by a block.

Two blocks of random data go from pages through reserved slots and back, and are compared with what a block should
be (by way of a lossy codec: within its tolerance); the slots are then given up uncommitted, so that no trace remains.
Runs on the bridge's loop, once per attached arena (a reconnected sidecar brings another view), and everything that
wants to use the arena waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import weakref
from functools import partial

import torch
from torch import Tensor

from ..kvstore.arena import ArenaView
from ..kvstore.types import Reserved
from ..proto import BlockLayout
from .copiers import make_codec, make_copier, page_rows
from .link import TOKEN_BYTES, Link
from .worker import Transfer, Worker

logger = logging.getLogger(__name__)

TEST_BLOCKS = 2


class Registration:
    """The state of the arena at hand: unknown, proved, or refused. Used on the loop only.

    Views are remembered weakly, so that a vanished sidecar's memory is not kept mapped from here.
    """

    def __init__(self, link: Link, worker: Worker, pool: Tensor) -> None:
        self._link = link
        self._worker = worker
        self._pool = pool
        self._proved: weakref.ref[ArenaView] | None = None
        self._trial: tuple[weakref.ref[ArenaView], asyncio.Task[str]] | None = None

    async def ready(self, timeout_s: float) -> str:
        """ "" if the arena may be used, else why not: "disconnected", "self_test" (for good), "deadline", "error"."""
        arena = self._link.client.arena
        if arena is None:
            return "disconnected"
        if self._proved is not None and self._proved() is arena:
            return ""
        if self._trial is None or self._trial[0]() is not arena:
            self._trial = (weakref.ref(arena), asyncio.ensure_future(self._prove(arena)))
        task = self._trial[1]
        await asyncio.wait({task}, timeout=max(0.0, timeout_s))
        return task.result() if task.done() and not task.cancelled() else "deadline"

    async def _prove(self, arena: ArenaView) -> str:
        """Never raises: a proof that cannot be had now is tried again with the next request."""
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._worker.copier.attach, arena.data)
            reason = await self._round_trip()
        except Exception:
            logger.exception("the arena cannot be used")
            reason = "error"
        if not reason:
            self._proved = weakref.ref(arena)
        if reason != "self_test":
            self._trial = None
        return reason

    async def _round_trip(self) -> str:
        link = self._link
        tokens = secrets.token_bytes(TEST_BLOCKS * link.layout.block_tokens * TOKEN_BYTES)
        call = link.client.reserve(tokens, start=0, count=TEST_BLOCKS)
        reserved, reason = await link.bridge.ask(call, link.limits.save_deadline_s, self._abort)
        if reserved is None:
            return reason
        if not reserved.lease:
            # A store without room proves nothing, but it can serve; every load is verified all the same.
            logger.warning("no self-test of the store's layout: %s", reserved.reason)
            return reserved.reason if reserved.reason in {"disconnected", "error"} else ""
        try:
            return await self._compare(reserved)
        finally:
            await self._abort(reserved)

    async def _compare(self, reserved: Reserved) -> str:
        """Pages -> slots -> other pages, by way of the worker; scratch pages, since the pool is in use."""
        arena, count = reserved.arena, len(reserved.slots)
        if arena is None:
            return "disconnected"
        layout = self._link.layout
        scratch = self._pool.new_zeros((2 * count, *self._pool.shape[1:]))
        scratch[:count] = random_pages(scratch[:count], layout)
        worker = self._worker.with_copier(make_copier(scratch, layout))
        deadline = self._link.clock() + self._link.limits.save_deadline_s
        fence = worker.copier.fence()
        out = Transfer(reserved.slots, range(count), arena, fence, deadline)
        saved = await self._link.bridge.from_thread(partial(worker.save, out))
        if saved is None or saved.reason:
            return saved.reason if saved is not None else "disconnected"
        refs = [ref._replace(checksum=checksum) for ref, checksum in zip(reserved.slots, saved.checksums, strict=True)]
        back = Transfer(refs, range(count, 2 * count), arena, fence, deadline)
        loaded = await self._link.bridge.from_thread(partial(worker.load, back))
        if loaded is None or loaded.reason not in {"", "corrupt"}:
            return loaded.reason if loaded is not None else "disconnected"
        slots = torch.stack([torch.from_numpy(arena.block(ref.slot)[: layout.block_bytes].copy()) for ref in refs])
        if loaded.corrupt or not same_blocks(layout, scratch[:count].cpu(), scratch[count:].cpu(), slots):
            logger.error("the store's blocks do not hold the engine's bytes: the cache stays unused")
            return "self_test"
        return ""

    async def _abort(self, reserved: Reserved) -> None:
        if reserved.lease:
            await self._link.bridge.ask(self._link.client.abort(reserved.lease), self._link.limits.late_s, None)


def random_pages(like: Tensor, layout: BlockLayout) -> Tensor:
    """On the CPU: random bytes, or, for a codec, random numbers, since it takes and gives only such."""
    if not layout.codec:
        data = torch.frombuffer(bytearray(secrets.token_bytes(like.nbytes)), dtype=torch.uint8)
        return data.view(like.dtype).view(like.shape)
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    return torch.randn(like.shape, generator=generator).to(like.dtype)


def same_blocks(layout: BlockLayout, exact: Tensor, back: Tensor, slots: Tensor) -> bool:
    """Whether slots (uint8 [n, block_bytes]) hold these pages, and `back` is what they hold. All on the CPU."""
    codec = make_codec(layout)
    if codec is None:
        return torch.equal(page_rows(exact), page_rows(back)) and torch.equal(page_rows(exact), slots)
    stored = torch.empty_like(exact)
    codec.decode(slots, stored)
    return codec.close(exact, stored) and codec.close(exact, back)
