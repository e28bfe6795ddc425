"""Residents: the blocks of one namespace that are in DRAM, and the leases on them.

Invariants: a slot belongs to exactly one of: a block in the index, a removed block that is still read (orphan), a
write lease, the free slots of its size class. Every lease here is a session's, too. A block becomes visible in one
step, after its parent. A slot's generation moves whenever the slot becomes free. Used by one thread.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..proto import Namespace, RetentionRange
from ..radix import TOKEN_BYTES, Match, PrefixIndex, Removals
from .arena import Arena
from .computing import Computing
from .ghosts import Ghosts, seed_of, traces
from .lease import ReadLease, WriteLease
from .placement.cost import CostModel
from .placement.policies import MakePolicy
from .retention import retain
from .slabs import Pages, SizeClass
from .stats import Counters
from .tenants.share import Share
from .tenants.tenants import Companion, Tenant
from .types import Slots
from .watch import Watcher, Watchers

# Column `below`: what is known of a block's copy in the lower tier. Only a hint, to ask for no copy in vain: the
# catalog knows.
ABSENT, QUEUED, WRITTEN = 0, 1, 2


class Residents:
    """See the module. `sessions` counts the sessions open on the namespace; when it is 0 and no block is left, the
    store drops the whole object."""

    def __init__(  # noqa: PLR0913  (each is a part of the store)
        self,
        namespace: Namespace,
        size_class: SizeClass,
        arena: Arena,
        *,
        policy: MakePolicy,
        cost: CostModel,
        clock: Callable[[], float],
        ghosts: Ghosts,
        counters: Counters,
        watchers: Watchers | None = None,
        tenant: Tenant | None = None,
        companion: Companion | None = None,
    ) -> None:
        self.namespace = namespace
        self.tenant = tenant
        """Whose it is; None in a store without tenants."""
        self.share: Share | None = tenant.dram if tenant is not None else None
        self.companion = companion
        """The shared namespace beside ours, where tenants share heads."""
        self.held = 0
        """How many, beside sessions, need this object to stay."""
        self.slots = 0
        """That are ours: of blocks, of orphans and under write leases."""
        self.fingerprint = namespace.fingerprint()
        self.size_class = size_class
        self.block_tokens = namespace.layout.block_tokens
        self.index = PrefixIndex(
            self.fingerprint,
            block_tokens=self.block_tokens,
            policy=policy(self.block_cost),
            hash_name=namespace.hash_name,
            clock=clock,
        )
        self.index.column("checksum", np.uint64, 0)
        self.index.column("trace", np.uint64, 0)
        self.index.column("live", np.bool_, False)
        self.index.column("below", np.uint8, ABSENT)
        self.index.column("remote", np.uint32, ABSENT)  # the uploader's
        self.index.column("prefetched", np.bool_, False)
        self.reads: dict[int, ReadLease] = {}
        self.writes: dict[int, WriteLease] = {}
        self.cost = cost
        self.computing = Computing(self, counters, clock)
        self.sessions = 0
        self.hit_tokens = 0
        self.miss_tokens = 0
        self.view = arena.view(namespace.layout.block_bytes, size_class.slot_bytes)
        self._arena = arena
        self._ghosts = ghosts
        self._counters = counters
        self._watchers = Watchers() if watchers is None else watchers
        self._pending: dict[int, int] = {}  # trace -> write leases that have such a block
        self._seed = seed_of(self.fingerprint)

    @property
    def block_token_bytes(self) -> int:
        return self.block_tokens * TOKEN_BYTES

    @property
    def users(self) -> int:
        """Who need this object even when it is empty."""
        return self.sessions + self.held

    @property
    def unit_bytes(self) -> int:
        """What a block takes."""
        return self.size_class.slot_bytes

    @property
    def empty(self) -> bool:
        """Neither a block nor a lease."""
        return not (len(self.index) or self.reads or self.writes)

    @property
    def reserved(self) -> int:
        """Slots under write leases."""
        return sum(len(lease.slots) for lease in self.writes.values())

    @property
    def pinned(self) -> int:
        """Blocks that may not be evicted now, orphans included."""
        return len(self.index) - self.index.evictable + self.index.orphans

    def awaits(self, trace: int) -> bool:
        """Whether somebody is writing a block of that name now."""
        return trace in self._pending

    def trace(self, match: Match) -> int:
        """What ghosts call the last block of a match; the namespace's own where there is none."""
        return int(self.index.col("trace")[match.last]) if len(match) else self._seed

    def read(self, lease_id: int, match: Match, skip: int) -> Slots:
        """Lease all of a match that is longer than `skip`; where its blocks from `skip` on lie."""
        blocks = match.blocks[skip:]
        slots = self.index.values(blocks)
        self.index.lease(match.last)
        self.reads[lease_id] = ReadLease(lease_id, match.blocks, skip, slots)
        return self._refs(slots, self.index.col("checksum")[blocks])

    def checksums(self, blocks: NDArray[np.int32]) -> list[int]:
        """xxh3-64 of each block."""
        return self.index.col("checksum")[blocks].tolist()

    def end_read(self, lease: ReadLease, corrupt: Sequence[int] = ()) -> None:
        """Release; the blocks at these positions of lease.slots, and what is below them, leave the index."""
        if corrupt:
            self._counters.checksum_failures += len(corrupt)
            block = int(lease.path[lease.first + min(corrupt)])
            # A block that someone else has removed is an orphan, whose number is ours until we release.
            if self.index.col("live")[block]:
                self._retire(self.index.remove(block), "corrupt")
        del self.reads[lease.id]
        self._unpin(lease.path)

    def take_prefetched(self, blocks: NDArray[np.int32]) -> int:
        """How many of these came by a prefetch and are used for the first time."""
        marks = self.index.col("prefetched")
        came = int(np.count_nonzero(marks[blocks]))
        if came:
            marks[blocks] = False
        return came

    def pin(self, match: Match) -> None:
        """Keep the parents of blocks that are about to be written."""
        self._pin(match.blocks)

    def unpin(self, match: Match) -> None:
        self._unpin(match.blocks)

    def write(
        self,
        lease_id: int,
        tokens: bytes,
        match: Match,
        slots: Pages,
        retention: Sequence[RetentionRange] = (),
        *,
        on_way: int = 0,
        names: Sequence[int] | None = None,
    ) -> WriteLease:
        """Lease `slots` for the blocks right after a pinned match and `on_way` blocks that are still to come; takes the
        pin over. names: from names_of(), if the caller has them."""
        first = len(match) + on_way
        if names is None:
            names = self.names_of(tokens, match, first + len(slots))[on_way:]
        for name in names:
            self._pending[name] = self._pending.get(name, 0) + 1
        self._hold(len(slots))
        prefix = tokens[: (first + len(slots)) * self.block_token_bytes]
        lease = WriteLease(lease_id, prefix, match.blocks, first, slots, list(names), retention)
        self.writes[lease_id] = lease
        return lease

    def names_of(self, tokens: bytes, match: Match, end: int) -> list[int]:
        """What ghosts call the blocks between a match and ordinal `end`."""
        return traces(self.trace(match), tokens, self.block_token_bytes, len(match), end)

    def slots_of(self, lease: WriteLease) -> Slots:
        """Where to write."""
        return self._refs(lease.slots, np.zeros(len(lease.slots), dtype=np.uint64))

    def commit(self, lease: WriteLease, checksums: Sequence[int]) -> NDArray[np.int32] | None:
        """Make the blocks visible: the numbers of those that are new. None when their parents are gone. Slots that are
        not needed become free."""
        known = len(self.index.match(lease.tokens, limit=lease.first))
        if lease.void or known < lease.first:
            self.end_write(lease)
            return None
        done = self.index.insert(lease.tokens, lease.slots, skip=lease.first)
        taken = done.existing - lease.first  # someone else committed these meanwhile
        fresh = done.blocks[done.existing :]
        self.index.col("checksum")[fresh] = np.array(checksums[taken:], dtype=np.uint64)
        self.index.col("trace")[fresh] = np.array(lease.traces[taken:], dtype=np.uint64)
        self.index.col("live")[fresh] = True
        retain(self.index, done.blocks, lease.retention)
        self._counters.duplicate_blocks += taken
        self._counters.came_bytes["dram"] += len(fresh) * self.size_class.slot_bytes
        self._end_write(lease, lease.slots[:taken])
        if len(self.computing):
            self.computing.committed(lease.traces)
        if self._watchers.present and len(fresh):
            self._tell(done.blocks, done.existing, lease.tokens)
        return fresh

    def split(self, lease: WriteLease, count: int, lease_id: int) -> WriteLease:
        """Cut a write lease after its first `count` blocks; the rest becomes one of its own that nothing will be made
        of, for slots that a device may still write to."""
        rest = WriteLease(
            lease_id,
            lease.tokens,
            lease.path,
            lease.first + count,
            lease.slots[count:],
            lease.traces[count:],
            void=True,
        )
        self._pin(lease.path)
        lease.tokens = lease.tokens[: rest.first * self.block_token_bytes]
        lease.slots, lease.traces = lease.slots[:count], lease.traces[:count]
        self.writes[lease_id] = rest
        return rest

    def join(self, lease: WriteLease, others: Sequence[WriteLease]) -> None:
        """Undo such cuts: each of `others` begins where the one before it ends. They become part of the first."""
        if not others:
            return
        for other in others:
            del self.writes[other.id]
            lease.traces += other.traces
            self._unpin(other.path)
        lease.tokens = others[-1].tokens
        lease.slots = np.concatenate([lease.slots, *(other.slots for other in others)])

    def tell_all(self, watcher: Watcher) -> None:
        """Tell a watcher of every block, once. Hashes them."""
        for blocks, first, above, tokens in self.index.runs():
            self.index.key(int(blocks[-1]))  # with those above
            parent = self.index.key(above) if above >= 0 else self.fingerprint
            watcher.stored("dram", self.fingerprint, first, self.index.known_keys(blocks), parent, tokens)

    def _tell(self, path: NDArray[np.int32], first: int, tokens: bytes) -> None:
        keys = self.index.keys(path, max(first - 1, 0))
        parent = keys.pop(0) if first else self.fingerprint
        own = tokens[first * self.block_token_bytes : len(path) * self.block_token_bytes]
        self._watchers.stored("dram", self.fingerprint, first, keys, parent, own)

    def end_write(self, lease: WriteLease) -> None:
        """Free the slots of a lease that was not committed."""
        self._end_write(lease, lease.slots)

    def evict(self, count: int, reason: str = "capacity") -> int:
        """Free up to `count` slots in the policy's order; how many it were."""
        removed = self.index.evict(count)
        if removed:
            self._retire(removed, reason)
        return len(removed)

    def evict_slab(self, slab: int) -> None:
        """Remove all blocks in a slab, and what is below them. No lease may be on it."""
        live = self.live()
        inside = live[self.size_class.slab_of(self.index.values(live)) == slab]
        for block in inside[np.argsort(self.index.col("depth")[inside])].tolist():
            if self.index.col("live")[block]:
                self._retire(self.index.remove(block), "slab")

    def clear(self) -> int:
        """Remove every block and void what is being written; how many blocks it were."""
        count = len(self.index)
        self.computing.clear()
        for lease in self.writes.values():
            lease.void = True
        live = self.live()
        for block in live[self.index.col("depth")[live] == 0].tolist():
            self._retire(self.index.remove(block), "cleared")
        return count

    def clear_prefix(self, tokens: bytes) -> int:
        """As clear, of the last full block of these packed tokens and all that hangs below it."""
        prefix = tokens[: len(tokens) // self.block_token_bytes * self.block_token_bytes]
        if not prefix:
            return 0
        for lease in self.writes.values():
            lease.void = lease.void or lease.tokens.startswith(prefix)
        match = self.index.match(prefix)
        if len(match) * self.block_token_bytes < len(prefix):
            return 0
        removed = self.index.remove(match.last)
        self._retire(removed, "cleared")
        return len(removed)

    def live(self) -> NDArray[np.int32]:
        """Numbers of the blocks in the index. One pass over a column."""
        return np.flatnonzero(self.index.col("live")).astype(np.int32)

    def busy_slots(self) -> Pages:
        """Slots that must stay as they are: read, above such a one, or being written; some more than once."""
        reads = [self.index.values(lease.path) for lease in self.reads.values()]
        writes = [part for lease in self.writes.values() for part in (self.index.values(lease.path), lease.slots)]
        return np.concatenate([np.empty(0, dtype=np.int64), *reads, *writes])

    def owned_slots(self) -> list[int]:
        """Every slot of this namespace once: blocks', orphans' and write leases'."""
        paths = {block for lease in [*self.reads.values(), *self.writes.values()] for block in lease.path.tolist()}
        blocks = paths | set(self.live().tolist())
        held = self.index.values(np.array(sorted(blocks), dtype=np.int32)).tolist()
        return [*held, *(slot for lease in self.writes.values() for slot in lease.slots.tolist())]

    def _refs(self, slots: Pages, checksums: NDArray[np.uint64]) -> Slots:
        return Slots(slots, self._arena.generations[slots], checksums)

    def block_cost(self, ordinal: int) -> float:
        """Seconds to compute the block of that ordinal; 0.0 = not known."""
        return self.cost.compute_s(ordinal * self.block_tokens, self.block_tokens)

    def _pin(self, path: NDArray[np.int32]) -> None:
        if len(path):
            self.index.lease(int(path[-1]))

    def _unpin(self, path: NDArray[np.int32]) -> None:
        if len(path):
            self._free(self.index.release(int(path[-1])).values)

    def _end_write(self, lease: WriteLease, unused: Pages) -> None:
        del self.writes[lease.id]
        for name in lease.traces:
            others = self._pending.pop(name) - 1
            if others:
                self._pending[name] = others
        self._free(unused)
        self._unpin(lease.path)

    def _retire(self, removed: Removals, reason: str) -> None:
        """Blocks have left the index: free the slots that nobody reads, remember and count the blocks."""
        blocks = removed.blocks.astype(np.intp)
        self.index.col("live")[blocks] = False
        gone = self.index.col("trace")[blocks]
        if self._watchers.present:
            self._watchers.removed("dram", self.fingerprint, self.index.known_keys(removed.blocks))
        kept_s = self.index.now() - removed.inserted_at
        self._ghosts.add(gone, reason if reason in {"corrupt", "cleared"} else "evicted", "dram", kept_s)
        self._counters.left("dram", kept_s, removed.hits > 0)
        self._counters.left_bytes["dram"] += len(removed) * self.size_class.slot_bytes
        self._free(removed.values[~removed.orphans])
        self._counters.evictions[reason] += len(removed)
        self._counters.evictions_reused[reason] += int(np.count_nonzero(removed.hits))
        self._counters.prefetched_blocks["unused"] += int(self.index.col("prefetched")[blocks].sum())

    def _hold(self, count: int) -> None:
        self.slots += count
        if self.share is not None:
            self.share.used += count * self.size_class.slot_bytes

    def _free(self, slots: Pages) -> None:
        if len(slots):
            self._hold(-len(slots))
            self._arena.free_slots(slots)
            self.size_class.give(slots)

    def check(self) -> None:
        """AssertionError unless index, leases and slots agree. O(everything)."""
        self.index.check()
        live = self.live()
        assert sorted(live.tolist()) == sorted(self.index.iterate()), (
            "blocks marked live and blocks in the index differ"
        )
        pending = Counter(trace for lease in self.writes.values() for trace in lease.traces)
        assert pending == self._pending, "blocks being written are miscounted"
        paths = [lease.path for lease in [*self.reads.values(), *self.writes.values()]]
        pinned = {block for path in paths for block in path.tolist()}
        in_index = pinned & set(live.tolist())
        assert len(in_index) == len(self.index) - self.index.evictable, "pinned blocks and leases differ"
        assert len(pinned) - len(in_index) == self.index.orphans, "orphans and leases differ"
        self.computing.check()
        assert self.slots == len(self.index) + self.index.orphans + self.reserved, "slots held are miscounted"
