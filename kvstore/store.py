"""Store: what one host keeps in its arena, for all namespaces, and the sessions on it.

Owned by one thread (or one event loop), which makes every call. No verb waits; only Session.acquire may. The gRPC
service and the embedded client are two doors to the same object.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from functools import partial

from ..proto import Namespace
from .arena import Arena
from .below import Below
from .bringing import Bringer
from .demoter import Demoter
from .depot import Depot
from .elsewhere import Elsewhere
from .errors import SessionRefused
from .events.hbm import Hbm
from .explain import Explainer
from .following import Progress
from .ghosts import DEFAULT_ENTRIES, Ghosts
from .handover.stock import Stock
from .insight import Insight
from .keeping import Keeping, Selection
from .lending import Lending, Loan
from .opening import refuse_geometry, refuse_identity
from .placement.cost import CostModel, IoCost
from .placement.policies import MakePolicy, make_policy
from .prefixes import Prefixes
from .promoter import Promoter
from .recount import check_leases, check_slots
from .remote import Attached, LastResort, Remote, Uploader
from .residents import Residents
from .room import Room
from .scores import Holdings
from .session import Session
from .shared import Backlog, Shared, Tap
from .slabs import TARGET_SLAB_BYTES, SlabPool
from .stats import Counters, SessionStats, StoreStats, TierStats
from .tenants.sharing import Sharing
from .tenants.tenancy import Tenancy
from .tenants.tenants import Tenant, Tenants, salted
from .tier_stats import depot_stats, namespace_stats
from .tracing import OFF, Tracer
from .warm import Warmed, warm
from .watch import Watcher, Watchers
from .why import Why


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
    ghost_entries:             evicted blocks remembered to explain a miss; a power of two, 17 bytes each.
    tenants:                   who shares the store; None: nobody does.
    insight:                   what is learnt of the traffic.
    tracer:                    makes spans of what is done for requests.
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
        tenants: Tenants | None = None,
        insight: Insight | None = None,
        tracer: Tracer = OFF,
    ) -> None:
        self.arena, self.tracer = arena, tracer
        self.insight = insight or Insight()
        self._policy = policy or make_policy()
        self._clock, self._max_sessions = clock, max_sessions
        self._spaces: dict[bytes, Residents] = {}
        self._sessions: dict[int, Session] = {}
        self._session_ids = itertools.count(1)
        self._pool = SlabPool(arena.pages, slab_bytes)
        self._ghosts = Ghosts(ghost_entries, clock)
        self._counters = Counters()
        self._io = IoCost()
        self._watchers = Watchers()
        self.remote = Attached()
        below = below or Below()
        room = Room(self._pool, self._spaces, clock, tenants=tenants is not None)
        lease_ids = itertools.count(1)
        self._depot = Depot(
            below.tier,
            policy=self._policy,
            block_cost=self._block_cost,
            counters=self._counters,
            io=self._io,
            watchers=self._watchers,
            clock=clock,
            tenants=tenants,
            ghosts=self._ghosts,
        )
        self._depot.load(below.inventory)
        self.tenancy = Tenancy(tenants, self._spaces, self._depot)
        self.holdings = Holdings(self._spaces, self._depot, Hbm(clock))
        why = Why(self._spaces, self._depot, self._ghosts, self.tenancy.tenant_of)
        self.explainer = Explainer(self._spaces, self._depot, why)
        self.keeping = Keeping(
            self._spaces, self._depot, self.remote, self.tenancy, dropped=self._drop_empty, forget=self.insight.forget
        )
        in_flight_bytes = int(arena.capacity_bytes * below.in_flight_share)
        self._promoter = Promoter(room, self._counters, lease_ids, max_bytes=in_flight_bytes)
        self._bringer = Bringer(self._depot, self._promoter, self._counters, self._io, clock, exclusive=below.exclusive)
        self._sharing: Sharing | None = None
        if tenants is not None and tenants.heads:
            make = partial(self._space, tenant=tenants.shared)
            self._sharing = Sharing(tenants, self._spaces, make, self._depot, self._promoter, lease_ids)
            self._bringer.sharing = self._sharing
        self.progress = Progress(self._spaces).progress
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
        backlog = Backlog(max_backlog_slots, max_session_backlog_slots)
        self.stock = Stock(self._spaces, self._space_of, self._bringer, self._depot, backlog, self._pool, clock)
        self._shared = Shared(
            room=room,
            depot=self._depot,
            promoter=self._promoter,
            demoter=self._demoter,
            backlog=backlog,
            counters=self._counters,
            lease_ids=lease_ids,
            max_leases=max_session_leases,
            bringer=self._bringer,
            why=why,
            on_close=self._session_closed,
            hbm=self.holdings.hbm,
            insight=self.insight,
            tracer=tracer,
        )
        if self._sharing is not None:
            self._shared.offers.append(self._sharing.offer)
        self.insight.attach(self.stats)

    def open_session(
        self, namespace: Namespace, *, client: str, fingerprint: bytes | None = None, tenant: str = ""
    ) -> Session:
        """A new session on a namespace.

        client: who, for people. fingerprint: what the client derives from the namespace, b"" or None = it did not say.
        tenant: whose the blocks are; its salt is added here. SessionRefused names the field: "hash_name" (no such
        algorithm), "fingerprint" (the client derives another),
        "kv_heads", "layers", "planes" or "head_dim" (the same weights are known here with another), "slot_bytes" (too
        large for this store), "sessions" (too many), "tenant" (none of that name).
        """
        self.stock.refuse_when_draining()
        owner = self.tenancy.named(tenant)
        refuse_identity(namespace, fingerprint)
        namespace = salted(namespace, owner) if owner is not None else namespace
        refuse_geometry(namespace, (space.namespace for space in self._spaces.values()))
        if len(self._sessions) >= self._max_sessions:
            raise SessionRefused("sessions", f"this store has its {self._max_sessions} sessions open already")
        space = self._space(namespace, owner)
        space.sessions += 1
        if owner is not None:
            owner.sessions += 1
        layout = namespace.layout
        view = self.arena.view(layout.block_bytes, layout.slot_bytes)
        session = Session(next(self._session_ids), client, space, view, self._shared)
        self._sessions[session.id] = session
        self.insight.start()
        self._counters.sessions_opened += 1
        return session

    @property
    def prefixes(self) -> Prefixes:
        return self.keeping.prefixes

    async def clear(self, fingerprint: bytes | None = None) -> int:
        """Drop the blocks of one namespace, or of all, from every tier and for good; how many blocks, each counted
        once. See keeping.Keeping for more."""
        return (await self.keeping.clear(Selection(fingerprint or b""))).blocks

    async def clear_tenant(self, name: str) -> int:
        """As clear, all namespaces of one tenant. SessionRefused for one that was never here."""
        self.tenancy.fingerprints(name)  # refuses the default tenant, whose empty name would mean everybody
        return (await self.keeping.clear(Selection(tenant=name))).blocks

    async def warm(self, fingerprint: bytes, tokens: bytes, deadline_s: float) -> Warmed | None:
        """Bring a prompt up to DRAM, where that pays, from wherever it is, and leave it there; None for a namespace on
        which nobody has opened a session since the start."""
        space = self._spaces.get(fingerprint)
        return await warm(space, self._bringer, tokens, deadline_s) if space is not None else None

    async def flush(self, deadline_s: float) -> int:
        """Wait until what was to be written to the lower tier is written and safe from a power cut; how many blocks
        are not (at least 1) when the deadline is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        try:
            async with asyncio.timeout_at(end):
                await self._demoter.flush()
                await self._depot.rewriter.settled()
                await self.remote.flush()
        except TimeoutError:
            pending = self._demoter.pending_blocks + self._depot.rewriter.pending_blocks + self.remote.pending_blocks
            return max(pending, 1)
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

    def attach_remote(self, remote: Remote) -> None:
        """Ask this store of last resort after all others, and write to it, from now on; stop() closes it."""
        lease_ids, max_bytes = self._shared.lease_ids, int(self.arena.capacity_bytes * remote.backlog_share)
        uploader = Uploader(remote, self._counters, self._io, lease_ids, self._clock, max_bytes=max_bytes)
        self.remote.uploader = uploader
        self._bringer.remote = LastResort(remote, self._io, self._counters, self._clock, uploader.saw)
        self._shared.offers.append(uploader.offer)

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
            tiers=(dram, *depot_stats(self._depot, self._io, self._demoter.pending_bytes), *self.remote.stats()),
            namespaces=tuple(namespace_stats(space) for space in spaces),
            sessions=tuple(
                SessionStats(each.id, each.client, each.fingerprint, len(each.reads), each.reserved)
                for each in self._sessions.values()
            ),
            counters=self._counters.copy(),
            tenants=self.tenancy.stats(),
            latencies=self._io.latencies(),
            backlog_slots=self._shared.backlog.reserved,
            backlog_limit_slots=self._shared.backlog.limit_slots,
        )

    def check(self) -> None:
        """AssertionError unless a recount of everything agrees. O(blocks), for tests and debugging."""
        spaces, sessions = list(self._spaces.values()), list(self._sessions.values())
        check_slots(self._pool, spaces)
        copies = [self._sharing.copies] if self._sharing is not None else []
        holders = [self._promoter, self._demoter, self._lending, self.remote, *copies]
        check_leases(spaces, sessions, holders, self._shared.backlog)
        self._depot.check()
        self.tenancy.check()
        self.stock.check()

    async def stop(self, deadline_s: float) -> None:
        """End all sessions, write what the lower tier lacks and sync it, each within deadline_s, and close the tier.
        close() is left to be called."""
        self.insight.stop()
        for session in list(self._sessions.values()):
            session.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                for space in list(self._spaces.values()):
                    await self._demoter.write_out(space)
        await self.flush(deadline_s)
        await self.remote.stop()
        await self._bringer.following.close()
        self._demoter.close()
        self._promoter.close()
        self._depot.rewriter.close()
        await self._depot.tier.close()

    def close(self) -> None:
        """End all sessions and close the arena. Closing twice is harmless."""
        self.insight.stop()
        for session in list(self._sessions.values()):
            session.close()
        self.arena.close()

    def _space_of(self, namespace: Namespace, tenant: str) -> Residents:
        """A namespace that another node hands over without a salt, as that tenant's."""
        owner = self.tenancy.handed(tenant)
        return self._space(salted(namespace, owner) if owner is not None else namespace, owner)

    def _space(self, namespace: Namespace, tenant: Tenant | None) -> Residents:
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
                tenant=tenant,
                companion=self.tenancy.companion(namespace, tenant),
            )
            self._depot.claim(self._spaces[fingerprint])
        return self._spaces[fingerprint]

    def _block_cost(self, fingerprint: bytes, ordinal: int) -> float:
        space = self._spaces.get(fingerprint)
        return space.block_cost(ordinal) if space is not None else 0.0

    def _session_closed(self, session: Session) -> None:
        del self._sessions[session.id]
        space = self._spaces[session.fingerprint]
        space.sessions -= 1
        if space.tenant is not None:
            space.tenant.sessions -= 1
        self._drop_empty()

    def _drop_empty(self) -> None:
        """Forget namespaces with neither session nor block, so that what comes and goes costs nothing for ever."""
        for fingerprint in [key for key, space in self._spaces.items() if not space.users and space.empty]:
            del self._spaces[fingerprint]
        self._depot.drop_empty(self._spaces.keys())
