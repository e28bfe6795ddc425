"""Rewriter: gives records of the lower tier the retention that their blocks were given after they were written.

A record's header is never changed in place: the block is read, put again as a replacement, and the old record dies when
the new one is whole, so that a crash leaves one or the other. Slow on purpose, one batch at a time; blocks named again
meanwhile are written once. Used on the store's loop.
"""

import asyncio
import logging
import mmap

import numpy as np

from ..proto import PAGE_BYTES
from .catalog import Catalog
from .retention import retention_of
from .stats import Counters
from .tiers import Hit, Record, Tier, Wanted

log = logging.getLogger(__name__)

BATCH_BYTES = 8 << 20
MAX_WAITING = 1 << 16  # blocks; more are counted, and keep their retention until the next restart only
DEADLINE_S = 30.0


class Rewriter:
    """Works on `tier`, on the event loop, whenever there is something to write."""

    def __init__(self, tier: Tier, counters: Counters) -> None:
        self._tier = tier
        self._counters = counters
        self._waiting: dict[bytes, tuple[Catalog, int]] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, catalog: Catalog, blocks: list[int]) -> None:
        """These blocks of the catalog have another retention now."""
        keys = catalog.keys(np.array(blocks, dtype=np.int32))
        for block, key in zip(blocks, keys, strict=True):
            if len(self._waiting) >= MAX_WAITING and key not in self._waiting:
                self._counters.dropped_demotions["rewrite"] += 1
                continue
            self._waiting[key] = catalog, block
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def pending_blocks(self) -> int:
        """Blocks whose retention is not in their records yet, those in hand left out."""
        return len(self._waiting)

    async def settled(self) -> None:
        """Wait until nothing is to be written."""
        while self._task is not None and not self._task.done():
            await asyncio.wait({self._task})

    def close(self) -> None:
        """Give up what waits."""
        self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting:
            catalog = next(iter(self._waiting.values()))[0]
            count = max(1, BATCH_BYTES // (catalog.block_bytes + PAGE_BYTES))
            keys = [key for key, (owner, _) in self._waiting.items() if owner is catalog][:count]
            blocks = {key: self._waiting.pop(key)[1] for key in keys}
            try:
                await self._rewrite(catalog, {key: block for key, block in blocks.items() if catalog.has(block, key)})
            except Exception:
                log.exception("retention could not be written to the %s tier", self._tier.name)

    async def _rewrite(self, catalog: Catalog, blocks: dict[bytes, int]) -> None:
        if not blocks:
            return
        slot = -(-catalog.block_bytes // PAGE_BYTES) * PAGE_BYTES
        area = np.frombuffer(mmap.mmap(-1, slot * len(blocks)), dtype=np.uint8)  # begins at a page
        index = catalog.index
        wanted = [
            Wanted(
                catalog.fingerprint,
                key,
                catalog.key_above(block),
                index.tokens_of(block),
                catalog.block_bytes,
                area[at * slot : (at + 1) * slot],
            )
            for at, (key, block) in enumerate(blocks.items())
        ]
        answers = await self._tier.get(wanted, deadline_s=DEADLINE_S)
        records = [
            Record(
                each.fingerprint,
                each.key,
                each.parent,
                each.tokens,
                each.block_bytes,
                each.into,
                answer.checksum,
                catalog.hash_name,
                retention_of(index, np.array([blocks[each.key]], dtype=np.int32))[0],
                replace=True,
            )
            for each, answer in zip(wanted, answers, strict=True)
            if isinstance(answer, Hit) and catalog.has(blocks[each.key], each.key)
        ]
        if not records:
            return
        await self._tier.put(records, deadline_s=DEADLINE_S)
        # What left the catalog while it was written must not stay in the tier, where nothing would ever find it.
        gone = [each.key for each in records if not catalog.has(blocks[each.key], each.key)]
        if gone:
            await self._tier.drop(gone)
