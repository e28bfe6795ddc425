"""Session: one engine's live connection to a store. All it holds dies with it.

Its verbs return at once and never wait, except `acquire`, which may take up to its deadline. Used on the store's
thread. Trouble is a result with a reason; ValueError is for requests that make no sense, SessionClosed for verbs after
close().
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..proto import Namespace, RetentionRange
from ..radix import Match
from .arena import ArenaView
from .bringing import Came
from .elsewhere import NAME, REMOTE
from .errors import SessionClosed
from .events.hbm import Engine
from .insight.facts import facts_of
from .prefetching import Prefetches
from .residents import Residents
from .shared import Shared
from .traced import traced, traced_now
from .turns import Turns
from .types import NO_SLOTS, Acquired, HbmChange, Lookup, Miss, Origin, Receipt, Reserved, Wait
from .why import NEVER, Found

MAX_UNSEEN, MAX_UNSEEN_BYTES = 1024, 16 << 20  # of one session: prompts whose receipts are still to come


class Session:
    """Opened by Store.open_session(). id: unique within the store. arena: its view, for this namespace's slots."""

    def __init__(self, session_id: int, client: str, space: Residents, arena: ArenaView, shared: Shared) -> None:
        self.id = session_id
        self.client = client
        self.arena = arena
        self.tracer = shared.tracer
        self.fingerprint = space.fingerprint
        self.reserved = 0  # slots under this session's write leases
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self._space = space
        self._shared = shared
        self._facts = facts_of(space)
        self._turns = Turns(space.computing, session_id)
        self._prefetches = Prefetches(space, shared.bringer, shared.promoter)
        self._unseen: dict[str, bytes] = {}  # tokens by request id, the oldest first
        self._unseen_bytes = 0
        self.closed = False

    @property
    def namespace(self) -> Namespace:
        return self._space.namespace

    def lookup(self, tokens: bytes) -> Lookup:
        """What is here of a prompt. Pins nothing, counts nothing, touches nothing."""
        self._open()
        space, name = self._space, self._shared.depot.name
        match, below = space.index.match(tokens), self._below(tokens)
        here = self._shared.bringer.reach(space, tokens, len(match)) * space.block_tokens
        deeper = max(below.tokens - here, 0)
        tiers = {tier: count for tier, count in (("dram", here), (name, deeper)) if count}
        found = Found(space.fingerprint, tokens, match, below)
        miss = self._shared.why.missing(found, (here + deeper) // space.block_tokens, space.block_tokens)
        compute_s, load_s = space.cost.compute_s(0, here + deeper), space.cost.load_s(name, self._bytes(deeper))
        return Lookup(tiers, miss.reason if miss is not None else "", compute_s, load_s, miss)

    @traced_now
    def acquire_now(
        self, tokens: bytes, *, skip: int, deadline_s: float, wait: Wait | None = None, origin: Origin | None = None
    ) -> Acquired | None:
        """`acquire` when there is nothing to wait for; None, and nothing done, when a lower tier has more, or somebody
        computes it."""
        self._check_acquire(skip, deadline_s)
        match = self._space.index.match(tokens)
        below, have = self._below(tokens), max(len(match), skip)
        more, why = len(below) > have, ""
        copies = self._shared.bringer.reach(self._space, tokens, have) > have
        if (more or copies) and deadline_s == 0:
            why = "deadline"
        elif self._held >= self._shared.max_leases:
            why = "busy" if more or copies else ""
        elif deadline_s > 0:
            bringer = self._shared.bringer
            if copies:
                return None
            if more and not bringer.pays(self._space, match, below, skip):
                why = "slower_to_load"
            elif (
                more
                or bringer.asks(self._space, tokens, max(len(match), skip))
                or self._turns.waits(tokens, match, skip, wait)
            ):
                return None
        return self._grant(tokens, match, below, Came(len(match), len(match), why), skip, wait, origin)

    @traced
    async def acquire(
        self, tokens: bytes, *, skip: int, deadline_s: float, wait: Wait | None = None, origin: Origin | None = None
    ) -> Acquired:
        """Lease the longest stored prefix, less its first `skip` blocks.

        deadline_s: seconds that bringing blocks up to DRAM may take; 0 = what is there now. One request calls this
        once: it counts one use of every block found, of the skipped ones too, whose tokens the engine has reused. wait:
        see StoreClient; as long as the answer is "computing" it counts nothing, and is asked again.
        """
        given = self.acquire_now(tokens, skip=skip, deadline_s=deadline_s, wait=wait, origin=origin)
        if given is not None:
            return given
        space, turns = self._space, self._turns
        if wait is not None and turns.waits(tokens, space.index.match(tokens), skip, wait):
            wait, took_s = await turns.pause(tokens, space.index.match(tokens), skip, wait, deadline_s)
            deadline_s = max(0.0, deadline_s - took_s)
            if self.closed:
                return Acquired(0, skip, NO_SLOTS, {}, "disconnected")
            given = turns.again(tokens, space.index.match(tokens), skip, wait) or self.acquire_now(
                tokens, skip=skip, deadline_s=deadline_s, wait=wait, origin=origin
            )
            if given is not None:
                return given
        claim = (self.id, wait.ticket) if wait is not None and not self._shared.backlog.draining else None
        async with self._shared.bringer.bring(space, tokens, skip=skip, deadline_s=deadline_s, claim=claim) as came:
            if self.closed:
                return Acquired(0, skip, NO_SLOTS, {}, "disconnected")
            match = space.index.match(tokens)
            again = turns.again(tokens, match, skip, wait)
            return again or self._grant(tokens, match, self._below(tokens), came, skip, wait, origin)

    def prefetch(self, ticket: int, tokens: bytes, *, skip: int) -> None:
        """Begin to bring a prefix up where that pays, from below or from other nodes; pins nothing. Beyond
        MAX_PREFETCHES the oldest is cancelled."""
        self._open()
        self._prefetches.begin(ticket, tokens, skip)

    def cancel_prefetch(self, ticket: int) -> None:
        """The request has come, or will not; unknown tickets are ignored."""
        self._open()
        self._prefetches.cancel(ticket)

    def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> int:
        """Set the retention of stored blocks of a prompt, in whatever tier; how many blocks were named."""
        self._open()
        return self._shared.depot.retain(self._space, tokens, retention)

    def observe(self, prefills: Sequence[tuple[int, int, float]]) -> None:
        """(tokens of context before, tokens computed, seconds) of prefills in the engine."""
        self._open()
        for first, count, seconds in prefills:
            self._space.cost.observe_prefill(first, count, seconds)

    def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> None:
        """What the engine has in its own memory: all of it, or what changed. ValueError for what makes no sense."""
        self._open()
        space, owner = self._space, Engine(self.id, self.client)
        self._shared.hbm.report(owner, space, space.namespace.hash_name, changes, whole=whole)

    def served(self, receipt: Receipt) -> None:
        """What one request got."""
        self._open()
        space = self._space
        tenant = space.tenant.name if space.tenant is not None else ""
        tokens = self._unseen.pop(receipt.request_id, b"")
        self._unseen_bytes -= len(tokens)
        if tokens:
            receipt = replace(receipt, miss=self._shared.why.truth(space.fingerprint, tokens, receipt.miss))
        mine = {"fingerprint": space.fingerprint, "label": space.namespace.label, "client": self.client}
        self._shared.insight.served(replace(receipt, tenant=tenant, **mine), self._facts)

    def abandon(self, ticket: int) -> None:
        """The request of that Wait.ticket computes no more of its prompt; unknown tickets are ignored."""
        self._open()
        self._space.computing.abandon(self.id, ticket)

    def release(self, lease: int, corrupt: Sequence[int] = ()) -> None:
        """End a read lease; unknown ones are ignored. corrupt: positions in its slots; they and what is below them
        leave the store. ValueError, and no change, for a position outside of the lease."""
        self._open()
        if lease not in self.reads:
            return
        held = self._space.reads[lease]
        if corrupt and not 0 <= min(corrupt) <= max(corrupt) < len(held.slots):
            raise ValueError(f"corrupt positions must lie within the lease's {len(held.slots)} slots")
        self.reads.remove(lease)
        self._space.end_read(held, corrupt)

    def reserve(self, tokens: bytes, *, start: int, count: int, retention: Sequence[RetentionRange] = ()) -> Reserved:
        """Lease slots for blocks start .. start+count-1 of `tokens`, present ones left out. ValueError when `tokens`
        does not have so many full blocks. When there is no room for all, the first of them are given. retention: what
        commit sets for blocks of the prompt, present ones too."""
        self._open()
        space, end = self._space, start + count
        if start < 0 or count < 1 or end * space.block_token_bytes > len(tokens):
            raise ValueError(f"blocks {start} to {end - 1} are not all full blocks of these tokens")
        match = space.index.match(tokens, limit=end)
        if len(match) == end:
            return Reserved(0, (), NO_SLOTS, "present", self.arena)
        if len(match) < start:
            space.computing.dropped(self.id, tokens, len(match))
            return self._refuse("no_parent", count)
        missing = end - len(match)
        allowed, reason = self._allowed(missing)
        space.pin(match)
        given, short = self._shared.room.make(space, allowed)
        reason = short or reason
        if given < missing:
            space.computing.dropped(self.id, tokens, len(match) + given)
        if not given:
            space.unpin(match)
            return self._refuse(reason, missing)
        self._shared.demoter.cool(space)
        return self._give(tokens, match, given, missing, reason, retention)

    def commit(self, lease: int, checksums: Sequence[int]) -> bool:
        """Make the blocks of a write lease visible and end it. False: no such lease, or the blocks above are gone.
        ValueError, and no change, unless there is one checksum, an unsigned 64-bit number, for each slot."""
        self._open()
        if lease not in self.writes:
            return False
        held = self._space.writes[lease]
        if len(checksums) != len(held.slots) or not 0 <= min(checksums) <= max(checksums) < 1 << 64:
            raise ValueError(f"commit wants {len(held.slots)} checksums of 64 bits")
        self._forget_write(lease)
        space = self._space
        fresh = space.commit(held, checksums)
        if fresh is None:
            return False
        self._shared.counters.committed_blocks += len(fresh)
        match = space.index.match(held.tokens)
        self._shared.demoter.offer(space, held.tokens, match)
        for offer in self._shared.offers:
            offer(space, held.tokens, match)
        return True

    def abort(self, lease: int) -> None:
        """End a write lease, its slots free again. Unknown ones are ignored."""
        self._open()
        if lease in self.writes:
            held = self._space.writes[lease]
            self._space.computing.dropped(self.id, held.tokens, held.first)
            self._forget_write(lease)
            self._space.end_write(held)

    def close(self) -> None:
        """End every lease, then the session. Closing twice is harmless."""
        if self.closed:
            return
        for lease in list(self.writes):
            self.abort(lease)
        for lease in list(self.reads):
            self.release(lease)
        self._prefetches.close()
        self.closed = True
        self._turns.close()
        self._shared.hbm.end(self.id)
        self._shared.on_close(self)

    @property
    def _held(self) -> int:
        return len(self.reads) + len(self.writes)

    def _open(self) -> None:
        if self.closed:
            raise SessionClosed(f"session {self.id} has ended")

    def _check_acquire(self, skip: int, deadline_s: float) -> None:
        self._open()
        if skip < 0 or deadline_s < 0:
            raise ValueError(f"skip and deadline_s must be 0 or more, not {skip} and {deadline_s}")

    def _below(self, tokens: bytes) -> Match:
        return self._shared.bringer.below(self._space, tokens)

    def _bytes(self, tokens: int) -> int:
        return tokens // self._space.block_tokens * self._space.namespace.layout.block_bytes

    def _grant(
        self,
        tokens: bytes,
        match: Match,
        below: Match,
        came: Came,
        skip: int,
        wait: Wait | None,
        origin: Origin | None,
    ) -> Acquired:
        """Count the use of what was found, and lease it."""
        space = self._space
        self._turns.go(tokens, match, skip, wait, promise=not self._shared.backlog.draining)
        wanted, found = max(len(match) - skip, 0), Found(space.fingerprint, tokens, match, below)
        if wanted and self._held >= self._shared.max_leases:
            wanted, miss = 0, Miss("busy", skip * space.block_tokens)
        else:
            miss = self._shared.why.missing(found, max(len(match), skip), space.block_tokens, came.why)
        self._note(tokens, miss, origin)
        reason = miss.reason if miss is not None else ""
        self._shared.insight.asked(self._facts, tokens, max(len(match), skip), reason)
        self._touch(tokens, match, below)
        tiers = self._by_tier(len(match) - wanted, len(match), came)
        self._count_acquire(tokens, tiers, skip, reason)
        if not wanted:
            return Acquired(0, skip, NO_SLOTS, {}, reason, self.arena, miss=miss)
        compute_s = space.cost.compute_s(skip * space.block_tokens, wanted * space.block_tokens)
        self._shared.counters.saved_s += max(compute_s - came.waited_s, 0.0)
        lease = next(self._shared.lease_ids)
        slots = space.read(lease, match, skip)
        self.reads.add(lease)
        return Acquired(lease, skip, slots, tiers, reason, self.arena, compute_s, miss=miss)

    def _note(self, tokens: bytes, miss: Miss | None, origin: Origin | None) -> None:
        """Remember what has never been seen until its receipt comes: the operator may know more of it."""
        if self._space.tenant is None or origin is None or not origin.request_id:
            return
        self._unseen_bytes -= len(self._unseen.pop(origin.request_id, b""))
        if miss is not None and miss.reason == NEVER:
            self._unseen[origin.request_id] = tokens
            self._unseen_bytes += len(tokens)
        while len(self._unseen) > MAX_UNSEEN or self._unseen_bytes > MAX_UNSEEN_BYTES:
            self._unseen_bytes -= len(self._unseen.pop(next(iter(self._unseen))))

    def _touch(self, tokens: bytes, match: Match, below: Match) -> None:
        """One request used these blocks, in every tier that has them."""
        space, shared = self._space, self._shared
        space.index.touch(match.blocks)
        if len(below):
            shared.depot.touch(space.fingerprint, below)
        if shared.depot.present and len(match):
            shared.demoter.offer(space, tokens, match)
        if len(match):
            shared.counters.prefetched_blocks["used"] += space.take_prefetched(match.blocks)
        for offer in shared.offers:
            offer(space, tokens, match)
        for tap in shared.taps:
            tap(space.fingerprint, tokens, space.block_tokens)

    def _by_tier(self, first: int, end: int, came: Came) -> dict[str, int]:
        """Tokens by tier of leased blocks first .. end-1."""
        lower = max(came.resident, came.lower)
        marks = [max(first, min(mark, end)) for mark in (came.resident, lower, max(lower, came.peer), end)]
        counts = zip(("dram", self._shared.depot.name, NAME, REMOTE), [first, *marks], marks, strict=False)
        return {tier: (stop - start) * self._space.block_tokens for tier, start, stop in counts if stop > start}

    def _count_acquire(self, tokens: bytes, tiers: Mapping[str, int], skip: int, reason: str) -> None:
        space, counters = self._space, self._shared.counters
        counters.acquires += 1
        hit_tokens = sum(tiers.values())
        miss_tokens = max(len(tokens) // space.block_token_bytes - skip, 0) * space.block_tokens - hit_tokens
        space.hit_tokens += hit_tokens
        space.miss_tokens += miss_tokens
        if space.tenant is not None:
            space.tenant.hit_tokens += hit_tokens
            space.tenant.miss_tokens += miss_tokens
        for tier, count in tiers.items():
            counters.hit_tokens[tier] += count
        if miss_tokens:
            counters.miss_tokens[reason] += miss_tokens

    def _allowed(self, wanted: int) -> tuple[int, str]:
        """How many slots the bounds leave for this session, and which bound it is when these are fewer."""
        backlog = self._shared.backlog
        if backlog.draining:
            return 0, "draining"
        if self._held >= self._shared.max_leases:
            return 0, "busy"
        left = min(backlog.limit_slots - backlog.reserved, backlog.session_limit_slots - self.reserved)
        return (wanted, "") if wanted <= left else (left, "backlog")

    def _give(
        self,
        tokens: bytes,
        match: Match,
        given: int,
        missing: int,
        reason: str,
        retention: Sequence[RetentionRange],
    ) -> Reserved:
        if given < missing:
            self._shared.counters.dropped_saves[reason] += missing - given
        lease = next(self._shared.lease_ids)
        space = self._space
        held = space.write(lease, tokens, match, space.size_class.take(given), retention)
        self.writes.add(lease)
        self.reserved += given
        self._shared.backlog.reserved += given
        blocks = tuple(range(len(match), len(match) + given))
        return Reserved(lease, blocks, space.slots_of(held), reason, self.arena)

    def _refuse(self, reason: str, blocks: int) -> Reserved:
        self._shared.counters.dropped_saves[reason] += blocks
        return Reserved(0, (), NO_SLOTS, reason, self.arena)

    def _forget_write(self, lease: int) -> None:
        slots = len(self._space.writes[lease].slots)
        self.writes.remove(lease)
        self.reserved -= slots
        self._shared.backlog.reserved -= slots
