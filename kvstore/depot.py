"""Depot: the tier below DRAM as the store sees it. One Catalog a namespace, and room made in the policy's order.

A NullTier below is the normal case of a store without one: nothing is ever there, nothing is ever admitted. Used by the
store's thread; only the verbs that reach the tier are asynchronous.
"""

import time
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..proto import RetentionRange
from ..radix import Match
from .catalog import Catalog
from .depot_room import DepotRoom
from .ghosts import Ghosts
from .placement.cost import IoCost
from .placement.policies import MakePolicy
from .residents import Residents
from .retention import retain
from .rewriter import Rewriter
from .stats import Counters
from .tenants.tenants import Tenants
from .tiers import Got, NullTier, Put, Record, Rejected, Stored, Tier, Wanted, hit_bytes
from .tiers.codec import CodecStats
from .tiers.nvme.types import DeviceStats, Inventory
from .watch import Watchers


class LowerTier(Tier, Protocol):
    """A Tier whose blocks outlive the process."""

    async def flush(self, *, deadline_s: float) -> bool:
        """True once everything answered Stored before is safe from a power cut."""
        ...

    async def clear(self, fingerprint: bytes | None) -> int:
        """Forget one namespace's blocks, or all, for good: also after a restart."""
        ...

    async def forget(self, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """Drop these blocks of a namespace for good: also after a restart. What of it is being written will not become
        visible."""
        ...

    def refuses(self, fingerprint: bytes) -> str:
        """Why no block of that namespace can be put now, as Rejected would say; "" = there is nothing against it."""
        ...

    def devices(self) -> Sequence[DeviceStats]: ...

    def codec(self) -> CodecStats | None:
        """What the codec does; None = blocks are stored as they are."""
        ...


class Depot:
    """tier: below DRAM. policy: makes the eviction policy of a new catalog. block_cost: seconds to compute the block of
    that ordinal in that namespace, 0.0 = not known. io: learns what the tier takes."""

    def __init__(  # noqa: PLR0913  (each is a part of the store)
        self,
        tier: LowerTier,
        *,
        policy: MakePolicy,
        block_cost: Callable[[bytes, int], float],
        counters: Counters,
        io: IoCost,
        watchers: Watchers | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        tenants: Tenants | None = None,
        ghosts: Ghosts | None = None,
    ) -> None:
        self.tier = tier
        self._ghosts = ghosts
        self._tenants = tenants
        self._policy = policy
        self._block_cost = block_cost
        self._counters = counters
        self._io = io
        self._watchers = watchers
        self._clock = clock
        self._wall = wall
        self._catalogs: dict[bytes, Catalog] = {}
        self._cleared = 0
        self.rewriter = Rewriter(tier, counters)
        self._room = DepotRoom(tier, self._catalogs, counters, tenants=tenants is not None)

    @property
    def name(self) -> str:
        return self.tier.name

    @property
    def present(self) -> bool:
        """Whether there is a tier at all."""
        return not isinstance(self.tier, NullTier)

    @property
    def fill(self) -> float:
        """Live share of what the tier may hold."""
        usage = self.tier.usage()
        return usage.live_bytes / usage.live_limit_bytes if usage.live_limit_bytes else 1.0

    @property
    def epoch(self) -> int:
        """Moves at each clear: what was being written before must not be believed after."""
        return self._cleared

    def of(self, fingerprint: bytes) -> Catalog | None:
        return self._catalogs.get(fingerprint)

    def catalogs(self) -> Iterator[Catalog]:
        return iter(self._catalogs.values())

    def touch(self, fingerprint: bytes, match: Match) -> None:
        """A request used these blocks, wherever it found them: here they must not grow cold."""
        self._catalogs[fingerprint].index.touch(match.blocks)

    def retain(self, space: Residents, tokens: bytes, ranges: Sequence[RetentionRange]) -> int:
        """Set the retention of a prompt's blocks here and in DRAM; how many blocks were named, each once."""
        named = retain(space.index, space.index.match(tokens).blocks, ranges)
        catalog = self.of(space.fingerprint)
        if catalog is None:
            return named
        path = catalog.index.match(tokens).blocks
        with self._recorded(catalog, path):
            return max(named, retain(catalog.index, path, ranges))

    def retain_all(self, catalog: Catalog, blocks: NDArray[np.int32], **values: Any) -> None:
        """Set these fields of the retention of blocks here."""
        with self._recorded(catalog, blocks):
            catalog.index.retain(blocks, **values)

    @contextmanager
    def _recorded(self, catalog: Catalog, blocks: NDArray[np.int32]) -> Generator[None]:
        """Have what changes meanwhile written into the records, too."""
        before = catalog.index.retention(blocks)
        yield
        after = catalog.index.retention(blocks)
        changed = np.zeros(len(blocks), dtype=np.bool_)
        for old, new in zip(before, after, strict=True):
            changed |= old != new
        if changed.any():
            self.rewriter.add(catalog, blocks[changed].tolist())

    def open(self, space: Residents) -> Catalog:
        """The namespace's catalog, made if need be."""
        namespace, layout = space.namespace, space.namespace.layout
        catalog = self._catalog(space.fingerprint, namespace.hash_name, space.block_tokens, layout.block_bytes)
        self.claim(space)
        return catalog

    def claim(self, space: Residents) -> None:
        """Whose the namespace is, is known, and is remembered once something of it is here."""
        catalog = self.of(space.fingerprint)
        if self._tenants is None or space.tenant is None or catalog is None:
            return
        self._tenants.claim(space.fingerprint, space.tenant)
        if catalog.share is None:
            catalog.belong_to(space.tenant.nvme)

    def load(self, inventory: Sequence[Inventory]) -> None:
        """Take in what the tier had at start."""
        for found in inventory:
            catalog = self._catalog(found.fingerprint, found.hash_name, found.block_tokens, found.block_bytes)
            self._room.unreachable += catalog.load(found, self._wall())
        if self._tenants is not None:
            self._tenants.keep(self._catalogs)

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        """As Tier.get, measured."""
        with self._io.measure(self.name, "read", self._clock) as measured:
            answers = await self.tier.get(wanted, deadline_s=deadline_s)
            measured.size_bytes = hit_bytes(wanted, answers)
        self._counters.read_bytes[self.name] += measured.size_bytes
        return answers

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        """As Tier.put, after making room. The caller pins in the catalog what the records hang under."""
        allowed = await self._room.make(records)
        with self._io.measure(self.name, "write", self._clock) as measured:
            answers = await self.tier.put(list(compress(records, allowed)), deadline_s=deadline_s)
            if not all(allowed):
                given = iter(answers)
                answers = [next(given) if each else Rejected("quota") for each in allowed]
            stored = zip(records, answers, strict=True)
            measured.size_bytes = sum(record.block_bytes for record, answer in stored if isinstance(answer, Stored))
        self._counters.written_bytes[self.name] += measured.size_bytes
        return answers

    async def forget(self, catalog: Catalog, block: int, key: bytes, reason: str) -> None:
        """A block turned out to be lost ("evicted") or "corrupt": it leaves with all below it, unless it has left."""
        if catalog.has(block, key):
            keys = catalog.drop(block, reason)
            self._counters.tier_evictions[self.name] += len(keys)
            await self.tier.drop(keys)

    async def forget_tips(self, catalog: Catalog, tokens: bytes, first: int) -> None:
        """Drop blocks `first`.. of `tokens`, the last one first, as long as nothing hangs below them."""
        await self.tier.drop(catalog.drop_tips(tokens, first))

    async def clear(self, fingerprint: bytes | None) -> int:
        """Forget one namespace or all, for good; how many blocks."""
        self._cleared += 1
        cleared = sum(
            catalog.clear() for catalog in self._catalogs.values() if fingerprint in (None, catalog.fingerprint)
        )
        await self.tier.clear(fingerprint)
        return cleared

    async def clear_prefixes(self, fingerprint: bytes, prefixes: Sequence[bytes]) -> None:
        """Forget the last full block of each of these prefixes and all below it, for good. What of the namespace is
        being written will not become visible."""
        self._cleared += 1
        catalog = self.of(fingerprint)
        keys = [key for prefix in prefixes for key in catalog.clear_prefix(prefix)] if catalog is not None else []
        await self.tier.forget(fingerprint, keys)

    def _catalog(self, fingerprint: bytes, hash_name: str, block_tokens: int, block_bytes: int) -> Catalog:
        known = self._catalogs.get(fingerprint)
        if known is None:
            owner = self._tenants.owner(fingerprint) if self._tenants is not None else None
            known = self._catalogs[fingerprint] = Catalog(
                fingerprint,
                hash_name=hash_name,
                block_tokens=block_tokens,
                block_bytes=block_bytes,
                policy=self._policy(partial(self._block_cost, fingerprint)),
                clock=self._clock,
                tier=self.name,
                watchers=self._watchers,
                share=owner.nvme if owner is not None else None,
                ghosts=self._ghosts,
                counters=self._counters,
            )
        return known

    def drop_empty(self, used: Container[bytes]) -> None:
        """Forget catalogs without a block whose namespace nobody uses."""
        for fingerprint in [key for key, each in self._catalogs.items() if not len(each) and key not in used]:
            del self._catalogs[fingerprint]

    def check(self) -> None:
        """AssertionError unless every catalog is sound and the tier has as many blocks as they say. O(blocks)."""
        for catalog in self._catalogs.values():
            catalog.check()
