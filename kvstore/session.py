"""Session: one engine's live connection to a store. All it holds dies with it.

Its verbs return at once and never wait, except `acquire`, which may take up to its deadline. Used on the store's
thread. Trouble is a result with a reason; ValueError is for requests that make no sense, SessionClosed for verbs after
close().
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..proto import Namespace
from ..radix import Match
from .arena import ArenaView
from .errors import SessionClosed
from .residents import Residents
from .room import Room
from .stats import Counters
from .types import NO_SLOTS, Acquired, Lookup, Reserved


@dataclass(slots=True)
class Backlog:
    """Slots reserved and not committed: all sessions' together, and the limits on that and on one session's."""

    limit_slots: int
    session_limit_slots: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """What a store lends to all its sessions."""

    room: Room
    backlog: Backlog
    counters: Counters
    lease_ids: Iterator[int]
    max_leases: int  # of one session
    on_close: Callable[["Session"], None]


class Session:
    """Opened by Store.open_session(). id: unique within the store. arena: its view, for this namespace's slots."""

    def __init__(self, session_id: int, client: str, space: Residents, arena: ArenaView, shared: Shared) -> None:
        self.id = session_id
        self.client = client
        self.arena = arena
        self.fingerprint = space.fingerprint
        self.reserved = 0  # slots under this session's write leases
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self._space = space
        self._shared = shared
        self.closed = False

    @property
    def namespace(self) -> Namespace:
        return self._space.namespace

    def lookup(self, tokens: bytes) -> Lookup:
        """What is here of a prompt. Pins nothing, counts nothing, touches nothing."""
        self._open()
        match = self._space.index.match(tokens)
        return Lookup({"dram": match.tokens} if match.tokens else {}, self._space.explain(tokens, match))

    async def acquire(self, tokens: bytes, *, skip: int, deadline_s: float) -> Acquired:
        """Lease the longest stored prefix, less its first `skip` blocks.

        deadline_s: seconds that bringing blocks up to DRAM may take; 0 = what is there now. One request calls this
        once: it counts one use of every block found, of the skipped ones too, whose tokens the engine has reused.
        """
        self._open()
        if skip < 0 or deadline_s < 0:
            raise ValueError(f"skip and deadline_s must be 0 or more, not {skip} and {deadline_s}")
        match = self._space.index.match(tokens)
        reason = self._space.explain(tokens, match)
        self._space.index.touch(match.blocks)
        wanted = len(match) - skip
        if wanted > 0 and self._held >= self._shared.max_leases:
            wanted, reason = 0, "busy"
        self._count_acquire(tokens, max(wanted, 0), skip, reason)
        if wanted <= 0:
            return Acquired(0, skip, NO_SLOTS, {}, reason, self.arena)
        lease = next(self._shared.lease_ids)
        slots = self._space.read(lease, match, skip)
        self.reads.add(lease)
        return Acquired(lease, skip, slots, {"dram": wanted * self._space.block_tokens}, reason, self.arena)

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

    def reserve(self, tokens: bytes, *, start: int, count: int) -> Reserved:
        """Lease slots for blocks start .. start+count-1 of `tokens`, present ones left out. ValueError when `tokens`
        does not have so many full blocks. When there is no room for all, the first of them are given."""
        self._open()
        space, end = self._space, start + count
        if start < 0 or count < 1 or end * space.block_token_bytes > len(tokens):
            raise ValueError(f"blocks {start} to {end - 1} are not all full blocks of these tokens")
        match = space.index.match(tokens, limit=end)
        if len(match) == end:
            return Reserved(0, (), NO_SLOTS, "present", self.arena)
        if len(match) < start:
            return self._refuse("no_parent", count)
        missing = end - len(match)
        allowed, reason = self._allowed(missing)
        space.pin(match)
        given = self._shared.room.make(space.size_class, allowed)
        reason = "full" if given < allowed else reason
        if not given:
            space.unpin(match)
            return self._refuse(reason, missing)
        return self._give(tokens, match, given, missing, reason)

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
        return self._space.commit(held, checksums)

    def abort(self, lease: int) -> None:
        """End a write lease, its slots free again. Unknown ones are ignored."""
        self._open()
        if lease in self.writes:
            held = self._space.writes[lease]
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
        self.closed = True
        self._shared.on_close(self)

    @property
    def _held(self) -> int:
        return len(self.reads) + len(self.writes)

    def _open(self) -> None:
        if self.closed:
            raise SessionClosed(f"session {self.id} has ended")

    def _count_acquire(self, tokens: bytes, hits: int, skip: int, reason: str) -> None:
        space, counters = self._space, self._shared.counters
        counters.acquires += 1
        asked = max(len(tokens) // space.block_token_bytes - skip, 0)
        hit_tokens, miss_tokens = hits * space.block_tokens, (asked - hits) * space.block_tokens
        space.hit_tokens += hit_tokens
        space.miss_tokens += miss_tokens
        if hit_tokens:
            counters.hit_tokens["dram"] += hit_tokens
        if miss_tokens:
            counters.miss_tokens[reason] += miss_tokens

    def _allowed(self, wanted: int) -> tuple[int, str]:
        """How many slots the bounds leave for this session, and which bound it is when these are fewer."""
        backlog = self._shared.backlog
        if self._held >= self._shared.max_leases:
            return 0, "busy"
        left = min(backlog.limit_slots - backlog.reserved, backlog.session_limit_slots - self.reserved)
        return (wanted, "") if wanted <= left else (left, "backlog")

    def _give(self, tokens: bytes, match: Match, given: int, missing: int, reason: str) -> Reserved:
        if given < missing:
            self._shared.counters.dropped_saves[reason] += missing - given
        lease = next(self._shared.lease_ids)
        slots = self._space.write(lease, tokens, match, self._space.size_class.take(given))
        self.writes.add(lease)
        self.reserved += given
        self._shared.backlog.reserved += given
        return Reserved(lease, tuple(range(len(match), len(match) + given)), slots, reason, self.arena)

    def _refuse(self, reason: str, blocks: int) -> Reserved:
        self._shared.counters.dropped_saves[reason] += blocks
        return Reserved(0, (), NO_SLOTS, reason, self.arena)

    def _forget_write(self, lease: int) -> None:
        slots = len(self._space.writes[lease].slots)
        self.writes.remove(lease)
        self.reserved -= slots
        self._shared.backlog.reserved -= slots
