"""Store: what one host keeps in its arena, for all namespaces, and the sessions on it.

Owned by one thread (or one event loop), which makes every call. No verb waits; only Session.acquire may. The gRPC
service and the embedded client are two doors to the same object.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..proto import Namespace, Retention
from ..radix import HASH_BYTES, PrefixIndex
from .arena import Arena
from .bringing import Bringer
from .demoter import Demoter
from .depot import Depot, LowerTier
from .elsewhere import Elsewhere
from .errors import SessionRefused
from .ghosts import DEFAULT_ENTRIES, Ghosts
from .lending import Lending, Loan
from .placement.admission import Admission, AdmitAll
from .placement.cost import CostModel, IoCost, TierCost
from .placement.policies import MakePolicy, make_policy
from .promoter import Promoter
from .residents import Residents
from .room import Room
from .session import Backlog, Session, Shared, Tap
from .slabs import TARGET_SLAB_BYTES, SlabPool
from .stats import Counters, NamespaceStats, SessionStats, StoreStats, TierStats
from .tiers import NullTier
from .tiers.nvme.types import Inventory
from .watch import Watcher, Watchers

# All of one model's blocks have the same geometry, whatever the tenant, the adapter or the engine.
_GEOMETRY = ("kv_heads", "layers", "planes", "head_dim")


@dataclass(frozen=True, slots=True)
class Below:
    """The tier below DRAM, and how it is used.

    inventory: what the tier had when it was opened. admission: what is worth writing. exclusive: blocks go down only
    when they are about to leave DRAM, and leave the tier when they come up. in_flight_share, backlog_share: of the
    arena, what may be on its way up, and what may wait, pinned, for its way down.
    """

    tier: LowerTier = field(default_factory=NullTier)
    inventory: Sequence[Inventory] = ()
    admission: Admission = field(default_factory=AdmitAll)
    exclusive: bool = False
    in_flight_share: float = 0.5
    backlog_share: float = 0.5


class Store:
    """See the module.

    policy:                    makes the eviction policy of a namespace new to a tier.
    below:                     the tier below DRAM; None = there is none.
    clock:                     seconds, monotonic.
    max_backlog_slots:         slots that may be reserved and not committed, of all sessions together.
    max_session_backlog_slots: of one session.
    max_session_leases:        leases one session may hold.
    max_sessions:              sessions open at once; one more is refused.
    slab_bytes:                wanted size of the pieces in which sizes of slots share the arena; bounds a slot.
    ghost_entries:             evicted blocks remembered to explain a miss; a power of two, nine bytes each.
    """

    def __init__(  # noqa: PLR0913  (each is a bound of its own)
        self,
        arena: Arena,
        *,
        policy: MakePolicy | None = None,
        below: Below | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_backlog_slots: int = 4096,
        max_session_backlog_slots: int = 2048,
        max_session_leases: int = 4096,
        max_sessions: int = 1024,
        slab_bytes: int = TARGET_SLAB_BYTES,
        ghost_entries: int = DEFAULT_ENTRIES,
    ) -> None:
        self.arena = arena
        self._policy = policy or make_policy()
        self._clock = clock
        self._max_sessions = max_sessions
        self._spaces: dict[bytes, Residents] = {}
        self._sessions: dict[int, Session] = {}
        self._session_ids = itertools.count(1)
        self._pool = SlabPool(arena.pages, slab_bytes)
        self._ghosts = Ghosts(ghost_entries)
        self._counters = Counters()
        self._io = IoCost()
        self._watchers = Watchers()
        below = below or Below()
        room, lease_ids = Room(self._pool, self._spaces, clock), itertools.count(1)
        self._depot = Depot(
            below.tier,
            policy=self._policy,
            block_cost=self._block_cost,
            counters=self._counters,
            io=self._io,
            watchers=self._watchers,
            clock=clock,
        )
        self._depot.load(below.inventory)
        in_flight_bytes = int(arena.capacity_bytes * below.in_flight_share)
        self._promoter = Promoter(room, self._counters, lease_ids, max_bytes=in_flight_bytes)
        self._bringer = Bringer(self._depot, self._promoter, self._counters, self._io, clock, exclusive=below.exclusive)
        self._lending = Lending(self._spaces, self._bringer, lease_ids)
        self._demoter = Demoter(
            self._depot,
            room,
            below.admission,
            self._counters,
            lease_ids,
            max_bytes=int(arena.capacity_bytes * below.backlog_share),
            exclusive=below.exclusive,
        )
        self._shared = Shared(
            room=room,
            depot=self._depot,
            promoter=self._promoter,
            demoter=self._demoter,
            backlog=Backlog(max_backlog_slots, max_session_backlog_slots),
            counters=self._counters,
            lease_ids=lease_ids,
            max_leases=max_session_leases,
            bringer=self._bringer,
            on_close=self._session_closed,
        )

    def open_session(self, namespace: Namespace, *, client: str, fingerprint: bytes | None = None) -> Session:
        """A new session on a namespace.

        client: who, for people. fingerprint: what the client derives from the namespace, b"" or None = it did not say.
        SessionRefused names the field: "hash_name" (no such algorithm), "fingerprint" (the client derives another),
        "kv_heads", "layers", "planes" or "head_dim" (the same weights are known here with another), "slot_bytes" (too
        large for this store), "sessions" (too many).
        """
        self._refuse_identity(namespace, fingerprint)
        if len(self._sessions) >= self._max_sessions:
            raise SessionRefused("sessions", f"this store has its {self._max_sessions} sessions open already")
        space = self._space(namespace)
        space.sessions += 1
        layout = namespace.layout
        view = self.arena.view(layout.block_bytes, layout.slot_bytes)
        session = Session(next(self._session_ids), client, space, view, self._shared)
        self._sessions[session.id] = session
        self._counters.sessions_opened += 1
        return session

    async def clear(self, fingerprint: bytes | None = None) -> int:
        """Drop the blocks of one namespace, or of all, from every tier and for good; how many blocks, each counted
        once. What is being read stays until it is released; what is being written will not become visible."""
        spaces = [space for space in self._spaces.values() if fingerprint in (None, space.fingerprint)]
        cleared = sum(space.clear() for space in spaces)
        below = await self._depot.clear(fingerprint)
        self._drop_empty()
        return max(cleared, below)

    def retain(self, fingerprint: bytes, tokens: bytes, wish: Retention, fields: Sequence[str]) -> int:
        """Set these fields ("priority", "ttl_s", "pinned") of the retention of a prefix, or of a whole namespace when
        there are no tokens, in every tier; how many blocks were named, each once."""
        values = {name: getattr(wish, name) for name in fields}
        named = [0]
        space, catalog = self._spaces.get(fingerprint), self._depot.of(fingerprint)
        if space is not None:
            blocks = _blocks(space.index, tokens)
            space.index.retain(blocks, **values)
            named.append(len(blocks))
        if catalog is not None:
            blocks = _blocks(catalog.index, tokens)
            self._depot.retain_all(catalog, blocks, **values)
            named.append(len(blocks))
        return max(named)

    async def flush(self, deadline_s: float) -> int:
        """Wait until what was to be written to the lower tier is written and safe from a power cut; how many blocks
        are not (at least 1) when the deadline is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        try:
            async with asyncio.timeout_at(end):
                await self._demoter.flush()
                await self._depot.rewriter.settled()
        except TimeoutError:
            return max(self._demoter.pending_blocks + self._depot.rewriter.pending_blocks, 1)
        done = await self._depot.tier.flush(deadline_s=max(end - loop.time(), 0.0))
        return 0 if done else 1

    def tap(self, tap: Tap) -> Callable[[], None]:
        """Tell `tap` of each acquire from now on, until what this returns is called."""
        self._shared.taps.append(tap)
        return lambda: self._shared.taps.remove(tap)

    async def lend(
        self, fingerprint: bytes, tokens: bytes, first: int, *, max_blocks: int, deadline_s: float
    ) -> Loan | None:
        """Blocks for another node; see lending.Lender."""
        return await self._lending.lend(fingerprint, tokens, first, max_blocks=max_blocks, deadline_s=deadline_s)

    def join(self, elsewhere: Elsewhere | None) -> None:
        """Ask these other nodes for what no tier here has, from now on; None: nobody."""
        self._bringer.elsewhere = elsewhere

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Tell it of every block that is here, and from now on of each that comes or goes, until what this returns is
        called. O(blocks), and hashes them."""
        for space in self._spaces.values():
            space.tell_all(watcher)
        for catalog in self._depot.catalogs():
            catalog.tell_all(watcher)
        return self._watchers.add(watcher)

    def stats(self) -> StoreStats:
        """The store at this moment. O(namespaces and sessions)."""
        self._drop_empty()
        spaces = list(self._spaces.values())
        dram = TierStats(
            name="dram",
            capacity_bytes=self.arena.capacity_bytes,
            used_bytes=sum(each.used * each.slot_bytes for each in self._pool.classes()),
            leased_bytes=sum((each.pinned + each.reserved) * each.size_class.slot_bytes for each in spaces),
            reserved_bytes=sum(each.reserved * each.size_class.slot_bytes for each in spaces),
            blocks=sum(len(each.index) for each in spaces),
            pinned_blocks=sum(each.index.pinned for each in spaces),
        )
        return StoreStats(
            tiers=(dram, *self._lower_stats()),
            namespaces=tuple(_namespace_stats(space) for space in spaces),
            sessions=tuple(
                SessionStats(each.id, each.client, each.fingerprint, len(each.reads), each.reserved)
                for each in self._sessions.values()
            ),
            counters=self._counters.copy(),
        )

    def check(self) -> None:
        """AssertionError unless a recount of everything agrees. O(blocks), for tests and debugging."""
        self._pool.check()
        for size_class in self._pool.classes():
            spaces = [space for space in self._spaces.values() if space.size_class is size_class]
            counted = sum(space.index.evictable + space.pinned + space.reserved for space in spaces)
            assert counted == size_class.used, "evictable, leased and reserved slots are not all used slots"
            owners = [slot for space in spaces for slot in space.owned_slots()]
            assert len(owners) == len(set(owners)) == size_class.used, "a slot has two owners, or none"
            assert self._pool.used_pages[owners].all(), "a slot that someone owns is free"
        for space in self._spaces.values():
            space.check()
            sessions = [each for each in self._sessions.values() if each.fingerprint == space.fingerprint]
            assert space.sessions == len(sessions), "sessions of a namespace are miscounted"
            owners = (self._promoter, self._demoter, self._lending)
            ours = [lease for owner in owners for lease in owner.leases(space)]
            held = sorted([*ours, *(lease for each in sessions for lease in (*each.reads, *each.writes))])
            assert held == sorted([*space.reads, *space.writes]), "a lease without its holder"
            for each in sessions:
                reserved = sum(len(space.writes[lease].slots) for lease in each.writes)
                assert reserved == each.reserved, "a session's reserved slots are miscounted"
        backlog = self._shared.backlog
        assert backlog.reserved == sum(each.reserved for each in self._sessions.values()), "the backlog is miscounted"
        assert backlog.reserved <= backlog.limit_slots, "the backlog is above its limit"
        self._depot.check()

    async def stop(self, deadline_s: float) -> None:
        """End all sessions, write what the lower tier lacks and sync it, each within deadline_s, and close the tier.
        close() is left to be called."""
        for session in list(self._sessions.values()):
            session.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                for space in list(self._spaces.values()):
                    await self._demoter.write_out(space)
        await self.flush(deadline_s)
        self._demoter.close()
        self._promoter.close()
        self._depot.rewriter.close()
        await self._depot.tier.close()

    def close(self) -> None:
        """End all sessions and close the arena. Closing twice is harmless."""
        for session in list(self._sessions.values()):
            session.close()
        self.arena.close()

    def _lower_stats(self) -> Iterator[TierStats]:
        depot = self._depot
        if not depot.present:
            return
        usage, cost = depot.tier.usage(), self._io.tiers("read").get(depot.name, TierCost())
        yield TierStats(
            name=depot.name,
            capacity_bytes=usage.capacity_bytes,
            used_bytes=usage.used_bytes,
            leased_bytes=0,
            reserved_bytes=self._demoter.pending_bytes,
            blocks=usage.blocks,
            pinned_blocks=sum(each.index.pinned for each in depot.catalogs()),
            devices=tuple(depot.tier.devices()),
            codec=depot.tier.codec(),
            latency_s=cost.latency_s,
            bytes_per_s=cost.bytes_per_s,
        )

    def _refuse_identity(self, namespace: Namespace, fingerprint: bytes | None) -> None:
        if namespace.hash_name not in HASH_BYTES:
            known = ", ".join(sorted(HASH_BYTES))
            raise SessionRefused(
                "hash_name", f"no block hash of that name; there are {known}", theirs=namespace.hash_name
            )
        ours = namespace.fingerprint()
        if fingerprint and fingerprint != ours:
            raise SessionRefused(
                "fingerprint",
                "the client derives another fingerprint from the same namespace: its version does not fit this store's",
                ours=ours.hex(),
                theirs=fingerprint.hex(),
            )
        for space in self._spaces.values():
            known = space.namespace
            if known.weights_digest != namespace.weights_digest:
                continue
            for name in known.diff(namespace):
                # Pipeline stages hold different ranges of layers, and may hold different numbers of them.
                if name in _GEOMETRY and (name != "layers" or known.first_layer == namespace.first_layer):
                    theirs, here = getattr(namespace.layout, name), getattr(known.layout, name)
                    raise SessionRefused(
                        name,
                        f"these weights are known here with {name} {here}, not {theirs}",
                        ours=str(here),
                        theirs=str(theirs),
                    )

    def _space(self, namespace: Namespace) -> Residents:
        fingerprint = namespace.fingerprint()
        if fingerprint not in self._spaces:
            try:
                size_class = self._pool.size_class(namespace.layout.slot_bytes)
            except ValueError as error:
                raise SessionRefused("slot_bytes", str(error)) from None
            self._spaces[fingerprint] = Residents(
                namespace,
                size_class,
                self.arena,
                policy=self._policy,
                cost=CostModel(self._io),
                clock=self._clock,
                ghosts=self._ghosts,
                counters=self._counters,
                watchers=self._watchers,
            )
        return self._spaces[fingerprint]

    def _block_cost(self, fingerprint: bytes, ordinal: int) -> float:
        space = self._spaces.get(fingerprint)
        return space.block_cost(ordinal) if space is not None else 0.0

    def _session_closed(self, session: Session) -> None:
        del self._sessions[session.id]
        self._spaces[session.fingerprint].sessions -= 1
        self._drop_empty()

    def _drop_empty(self) -> None:
        """Forget namespaces with neither session nor block, so that what comes and goes costs nothing for ever."""
        for fingerprint in [key for key, space in self._spaces.items() if not space.sessions and space.empty]:
            del self._spaces[fingerprint]
        self._depot.drop_empty(self._spaces.keys())


def _blocks(index: PrefixIndex, tokens: bytes) -> NDArray[np.int32]:
    """Of a prefix, or all when there are no tokens."""
    return index.match(tokens).blocks if tokens else np.fromiter(index.iterate(), dtype=np.int32, count=len(index))


def _namespace_stats(space: Residents) -> NamespaceStats:
    return NamespaceStats(
        fingerprint=space.fingerprint,
        label=space.namespace.label,
        slot_bytes=space.size_class.slot_bytes,
        blocks=len(space.index),
        bytes=len(space.index) * space.size_class.slot_bytes,
        hit_tokens=space.hit_tokens,
        miss_tokens=space.miss_tokens,
        sessions=space.sessions,
    )
