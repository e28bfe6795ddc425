"""Store: what one host keeps in its arena, for all namespaces, and the sessions on it.

Owned by one thread (or one event loop), which makes every call. No verb waits; only Session.acquire may. The gRPC
service and the embedded client are two doors to the same object.
"""

import itertools
import time
from collections.abc import Callable

from ..proto import Namespace
from ..radix import HASH_BYTES, EvictionPolicy, Lru
from .arena import Arena
from .errors import SessionRefused
from .ghosts import DEFAULT_ENTRIES, Ghosts
from .residents import Residents
from .room import Room
from .session import Backlog, Session, Shared
from .slabs import TARGET_SLAB_BYTES, SlabPool
from .stats import Counters, CounterStats, NamespaceStats, SessionStats, StoreStats, TierStats

# All of one model's blocks have the same geometry, whatever the tenant, the adapter or the engine.
_GEOMETRY = ("kv_heads", "layers", "planes", "head_dim")


class Store:
    """See the module.

    policy:                    makes the eviction policy of a new namespace.
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
        policy: Callable[[], EvictionPolicy] = Lru,
        clock: Callable[[], float] = time.monotonic,
        max_backlog_slots: int = 4096,
        max_session_backlog_slots: int = 2048,
        max_session_leases: int = 4096,
        max_sessions: int = 1024,
        slab_bytes: int = TARGET_SLAB_BYTES,
        ghost_entries: int = DEFAULT_ENTRIES,
    ) -> None:
        self.arena = arena
        self._policy = policy
        self._clock = clock
        self._max_sessions = max_sessions
        self._spaces: dict[bytes, Residents] = {}
        self._sessions: dict[int, Session] = {}
        self._session_ids = itertools.count(1)
        self._pool = SlabPool(arena.pages, slab_bytes)
        self._ghosts = Ghosts(ghost_entries)
        self._counters = Counters()
        self._shared = Shared(
            room=Room(self._pool, self._spaces, clock),
            backlog=Backlog(max_backlog_slots, max_session_backlog_slots),
            counters=self._counters,
            lease_ids=itertools.count(1),
            max_leases=max_session_leases,
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

    def clear(self, fingerprint: bytes | None = None) -> int:
        """Drop the blocks of one namespace, or of all; how many. What is being read stays until it is released; what
        is being written will not become visible."""
        spaces = [space for space in self._spaces.values() if fingerprint in (None, space.fingerprint)]
        cleared = sum(space.clear() for space in spaces)
        self._drop_empty()
        return cleared

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
        )
        return StoreStats(
            tiers=(dram,),
            namespaces=tuple(_namespace_stats(space) for space in spaces),
            sessions=tuple(
                SessionStats(each.id, each.client, each.fingerprint, len(each.reads), each.reserved)
                for each in self._sessions.values()
            ),
            counters=CounterStats.of(self._counters),
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
            reads = [lease for each in sessions for lease in each.reads]
            writes = [lease for each in sessions for lease in each.writes]
            assert sorted(reads) == sorted(space.reads), "a read lease without its session"
            assert sorted(writes) == sorted(space.writes), "a write lease without its session"
            for each in sessions:
                reserved = sum(len(space.writes[lease].slots) for lease in each.writes)
                assert reserved == each.reserved, "a session's reserved slots are miscounted"
        backlog = self._shared.backlog
        assert backlog.reserved == sum(each.reserved for each in self._sessions.values()), "the backlog is miscounted"
        assert backlog.reserved <= backlog.limit_slots, "the backlog is above its limit"

    def close(self) -> None:
        """End all sessions and close the arena. Closing twice is harmless."""
        for session in list(self._sessions.values()):
            session.close()
        self.arena.close()

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
                policy=self._policy(),
                clock=self._clock,
                ghosts=self._ghosts,
                counters=self._counters,
            )
        return self._spaces[fingerprint]

    def _session_closed(self, session: Session) -> None:
        del self._sessions[session.id]
        self._spaces[session.fingerprint].sessions -= 1
        self._drop_empty()

    def _drop_empty(self) -> None:
        """Forget namespaces with neither session nor block, so that what comes and goes costs nothing for ever."""
        for fingerprint in [key for key, space in self._spaces.items() if not space.sessions and not len(space.index)]:
            del self._spaces[fingerprint]


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
